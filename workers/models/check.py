"""The checks of a version, measured with a local model: `python -m workers.models.check <run id>`."""

import sys

from workers.models.policy_options import act
from workers.tasks.environment_checks import check, reference_of


def main() -> int:
    return act("check", reference_of, check)


if __name__ == "__main__":
    sys.exit(main())
