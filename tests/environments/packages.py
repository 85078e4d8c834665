"""A small package for tests, which can be bent in one place."""

MANIFEST = """\
spec_version: 1
name: {name}
description: Guess a cell.
app: server.app:app
proctor:
  agent:
    system: You guess.
    observation: "{{{{ message }}}}"
    action: {{format: tag, tag: move, field: cell, type: integer, choices: legal}}
  rewards:
    win: 1.0
    format: 0.2
  tasks: {{train: 10, heldout: 5, levels: 2}}
"""

MODELS = """\
from openenv.core.env_server.types import Action, Observation


class GuessAction(Action):
    cell: int


class GuessObservation(Observation):
    message: str = ""
    legal: list[int] = []
"""


def make_files(name: str = "guess", **changes: str) -> dict[str, str]:
    """`changes`: further files or other texts, a path's `/` and `.` written as `__` and `_dot_`."""
    files = {
        "openenv.yaml": MANIFEST.format(name=name),
        "README.md": "# Guess\n",
        "models.py": MODELS,
        "server/__init__.py": "",
        "server/app.py": "app = object()\n",
    }
    return files | {path.replace("__", "/").replace("_dot_", "."): text for path, text in changes.items()}
