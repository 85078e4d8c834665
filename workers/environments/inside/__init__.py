"""Code that runs in the interpreter of an environment runtime: no third-party imports except `openenv`."""
