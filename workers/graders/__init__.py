"""Asking a policy about what others did: the requests, what they cost, and understanding the replies."""
