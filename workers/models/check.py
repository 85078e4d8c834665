"""The checks of a version, measured with a local model: `python -m workers.models.check <run id>`."""

import sys

from workers.jobs.checks import asked_reference, check
from workers.models.movers import act


def main() -> int:
    return act("check", asked_reference, check)


if __name__ == "__main__":
    sys.exit(main())
