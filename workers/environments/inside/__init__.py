"""Code that runs in the interpreter of an environment runtime: it imports only the standard library and `openenv`."""
