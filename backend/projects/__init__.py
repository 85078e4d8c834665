"""Projects: what belongs together, and who may see and change it."""
