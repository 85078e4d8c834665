"""Delete environments, runs and policies, restore them for 30 days, then remove their rows and files."""
