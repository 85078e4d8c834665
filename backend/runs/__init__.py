"""Policies, evaluations, runs of every kind, their rollouts, and comparing them."""
