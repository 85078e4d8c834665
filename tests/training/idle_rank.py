"""A rank of a run that gives signs of life and does nothing else, until the leader leaves."""

import os
import sys
import time
from pathlib import Path

from backend.settings import get_settings
from workers.training.heartbeats import ACTIVITY


def main(folder: Path) -> None:
    ACTIVITY.begin("learning in step 3")
    while True:
        ACTIVITY.report(int(os.environ["RANK"]), folder)  # noqa: TID251 - set by the launcher
        time.sleep(0.1)


if __name__ == "__main__":
    main(get_settings().data / "training" / sys.argv[1])
