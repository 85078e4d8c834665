"""What looks unhealthy in the curves of a training run. Pure functions: stored curves give the same alarms again."""
