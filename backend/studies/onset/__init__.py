"""When a confirmed pattern began: searches over checkpoints, and the last checkpoint before any of them."""
