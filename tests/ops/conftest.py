"""One whole Proctor for all tests of the command line that need workers."""

from tests.ops.living import command, living

__all__ = ["command", "living"]
