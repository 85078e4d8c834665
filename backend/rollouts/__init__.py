"""Rollouts that leave to other tools or come from them, and the training data that is made of them."""
