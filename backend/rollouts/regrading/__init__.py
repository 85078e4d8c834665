"""Regrading: other rewards for stored rollouts, and stored replies replayed on another version. Workers run it."""
