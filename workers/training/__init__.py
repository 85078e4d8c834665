"""Training runs: SFT warm-up and GRPO with TRL, held-out evaluations, checkpoints and exports."""
