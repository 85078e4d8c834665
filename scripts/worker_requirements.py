"""What a worker of a flavour needs: Proctor's own dependencies without the web's, and the flavour's extra.

    python scripts/worker_requirements.py gpu-vllm > requirements.txt

Workers never load the web, and vLLM pins a FastAPI that the web cannot use: so a flavour is installed from this list
and its own constraints, and Proctor itself with `--no-deps`. It needs nothing but Python.
"""

import re
import sys
import tomllib
from pathlib import Path

WEB = frozenset({"argon2-cffi", "fastapi", "markdown-it-py", "python-multipart", "uvicorn"})
"""Dependencies that only the web has use for."""
FLAVOURS = ("core", "cpu", "gpu", "gpu-vllm", "gpu-unsloth")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")


def requirements(flavour: str, project: Path) -> list[str]:
    described = tomllib.loads(project.read_text())["project"]
    own = [line for line in described["dependencies"] if name_of(line) not in WEB]
    return sorted(own + _extra(described, flavour))


def _extra(described: dict[str, dict[str, list[str]]], flavour: str) -> list[str]:
    """With what it takes from other extras of ours."""
    if flavour == "core":
        return []
    found = []
    for line in described["optional-dependencies"][f"train-{flavour}"]:
        other = re.fullmatch(r"proctor\[train-([a-z-]+)\]", line)
        found += _extra(described, other[1]) if other else [line]
    return found


def name_of(line: str) -> str:
    found = _NAME.match(line)
    return found[0].lower() if found else line


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in FLAVOURS:
        sys.stderr.write(f"name a flavour: {', '.join(FLAVOURS)}\n")
        return 2
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    sys.stdout.write("".join(f"{line}\n" for line in requirements(arguments[0], project)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
