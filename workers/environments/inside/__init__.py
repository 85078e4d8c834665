"""What runs inside the interpreter of an environment runtime: the standard library and `openenv`, nothing of ours."""
