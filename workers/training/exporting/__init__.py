"""Parts of an export: its files, the comparison with the checkpoint, the model card, and the script inside it."""
