"""Training runs, the checkpoints that they leave, and the exports of those."""
