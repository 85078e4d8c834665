"""Numbers, measured: `python -m benchmarks.<name>`. Each starts what it needs in a temporary folder and ends it."""
