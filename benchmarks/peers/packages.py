"""The environments of the comparison as packages of Proctor."""

from pathlib import Path

from backend.environments.library import load_package

_FOLDER = Path(__file__).parent / "packages"
_BASE = "server/rewards.py"
"""The base class is that of the built-in packages."""


def peer_package(name: str) -> dict[str, str]:
    """Text by path of `one_turn` or `five_turns`."""
    folder = _FOLDER / name
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    own = {path: text for path, text in files.items() if "__pycache__" not in path}
    return {_BASE: load_package("reverse_text")[_BASE], **own}
