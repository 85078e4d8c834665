"""What judges and questions have in common: a name, and a policy that is asked about rollouts."""
