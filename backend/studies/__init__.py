"""What searches for an onset and effort scores have in common: stored checkpoints play, and that answers something."""
