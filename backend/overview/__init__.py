"""The front page, and what this installation consists of."""
