"""The command line. `up` and `demo` serve; everything else talks to the JSON API of a running Proctor."""

from backend.cli.main import main

__all__ = ["main"]
