"""The team: signing in, members and their roles, API tokens, the audit log."""
