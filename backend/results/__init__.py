"""What runs say: figures, groups, comparisons, baselines, leaderboards."""
