"""What an export is made of: the forms, the proof that a merge is right, the manifest, the script that comes along."""
