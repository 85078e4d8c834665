"""The JSON API of policies, runs, rollouts, results and judges."""
