"""Local models: load, build and sample them, serve them, and play runs with them."""
