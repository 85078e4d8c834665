"""Training runs: warm-up by imitation, GRPO through TRL, examinations, checkpoints and exports."""
