"""A local model plays on in a hand-played episode: `python -m workers.models.play <run id>`."""

import sys
import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.environments.play import PlayState
from backend.runs.tables import Run
from workers.models.policy_options import act
from workers.tasks.hand_play import play_on


def _asked(session: Session, run_id: uuid.UUID) -> Mapping[str, Any]:
    return PlayState.from_json(session.get_one(Run, run_id).progress).mover


def main() -> int:
    return act("play", _asked, play_on)


if __name__ == "__main__":
    sys.exit(main())
