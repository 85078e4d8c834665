"""Policies: forms, secrets, checked addresses, connection tests."""
