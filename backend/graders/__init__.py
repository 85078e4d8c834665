"""Graders: policies that read stored rollouts and give each a score, an answer or a suspicion."""
