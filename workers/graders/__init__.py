"""Graders at work: requests to their model, parsed replies, checked quotes, canaries."""
