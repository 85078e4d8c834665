"""A program for the runtime's Python: fetch the source distributions of requirements that have no fitting wheel.

python fetch_source.py FOLDER REQUIREMENT… prints a JSON list of what was fetched. It asks pip's own finder, so that
index, proxy and credentials are those of `pip install`, and downloads only: pip's `download` would run the package's
metadata hooks, which is foreign code.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from pip._internal.commands import create_command
from pip._vendor.packaging.requirements import Requirement

MAX_BYTES = 64 << 20
_CHUNK = 1 << 20


def main(folder: str, *requirements: str) -> None:
    command: Any = create_command("download")
    options, _ = command.parse_args(["--no-input", "--disable-pip-version-check", "--prefer-binary", *requirements])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        found = [_fetch(session, finder, Requirement(line), Path(folder)) for line in dict.fromkeys(requirements)]
    sys.stdout.write(json.dumps([entry for entry in found if entry]))


def _fetch(session: Any, finder: Any, requirement: Requirement, folder: Path) -> dict[str, str] | None:
    """None when a wheel will do, or when nothing fits at all."""
    best = finder.find_best_candidate(requirement.name, requirement.specifier).best_candidate
    if best is None or best.link.is_wheel:
        return None
    if "/" in best.link.filename:
        sys.exit(f"{best.link.filename[:100]!r} is not a file name")
    path = folder / best.link.filename
    digest = hashlib.new(best.link.hash_name or "sha256")
    with path.open("wb") as file:
        for part in _parts(session, best.link):
            digest.update(part)
            file.write(part)
            if file.tell() > MAX_BYTES:
                sys.exit(f"{best.link.filename} is larger than {MAX_BYTES >> 20} MB")
    if best.link.hash and digest.hexdigest() != best.link.hash:
        sys.exit(f"{best.link.filename} is not what the index says: its {best.link.hash_name} differs")
    return {"name": best.name, "version": str(best.version), "path": str(path)}


def _parts(session: Any, link: Any) -> Any:
    if link.is_file:
        with open(link.file_path, "rb") as file:
            while part := file.read(_CHUNK):
                yield part
        return
    response = session.get(link.url_without_fragment, stream=True, headers={"Accept-Encoding": "identity"})
    response.raise_for_status()
    yield from response.iter_content(_CHUNK)


if __name__ == "__main__":
    main(*sys.argv[1:])
