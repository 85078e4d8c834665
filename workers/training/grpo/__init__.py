"""What a GRPO stage is made of, beside TRL: its data, which groups are learned from, and whom a reward speaks to."""
