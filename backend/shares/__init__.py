"""Read-only links for people outside of the team, and reports as files."""
