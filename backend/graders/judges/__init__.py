"""Model judges: what they are, what they said of rollouts, adding and asking them."""
