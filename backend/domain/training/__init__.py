"""A training run as it is described before it runs: its configuration block by block, presets, alarms, pre-flight."""
