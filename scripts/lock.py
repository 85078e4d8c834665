"""Write the constraints files: every release that an installation may use, with the SHA-256 of each of its files.

    python scripts/lock.py               after a requirement changed; other pins stay
    python scripts/lock.py --upgrade     all releases that are newest now

The files hold for every platform and Python version that Proctor supports, and name no package index.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.dependencies import (
    ROOT,
    direct_requirements,
    extra_requirements,
    normalized,
    read_pins,
    worker_requirements,
)

OTHER_BUILDS = {
    ("torch", "2.13.0"): (
        "sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # cp311, x86-64
        "sha256:4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # cp312, x86-64
    ),
}
"""Hashes of files that the public index does not have: PyTorch's own CPU builds of the same release for Linux."""
OVERRIDES = {"constraints-gpu-unsloth.txt": ["certifi>=2026.10.18"]}
"""Requirements that no published release satisfies yet. The installer treats them as unpinned (`FLAVOURS`)."""
WITHOUT_DEPENDENCIES = {"constraints-instruct.txt"}
"""Installed without dependencies, next to Proctor's."""


def main(arguments: Sequence[str]) -> int:
    more = ["--upgrade"] if "--upgrade" in arguments else []
    everything = ["embedded", "train-cpu", "train-gpu", "qlora", "gguf", "docker"]
    wanted = {
        "constraints.txt": direct_requirements(everything, ["dev"]),
        "constraints-gpu-vllm.txt": worker_requirements("gpu-vllm"),
        "constraints-gpu-unsloth.txt": worker_requirements("gpu-unsloth"),
        "constraints-runtime.txt": ["openenv"],
        "constraints-instruct.txt": extra_requirements("instruct"),
        "constraints-installers.txt": ["pip", "uv"],
    }
    for name, requirements in wanted.items():
        _compile(ROOT / name, requirements, more)
    return 0


def _compile(file: Path, requirements: Sequence[str], more: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, overrides = Path(folder, "requirements.in"), Path(folder, "overrides.txt")
        source.write_text("".join(f"{line}\n" for line in requirements))
        overrides.write_text("".join(f"{line}\n" for line in OVERRIDES.get(file.name, [])))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--universal"]
        layout = ["--no-header", "--no-annotate", "--generate-hashes", "--python-version", "3.11"]
        places = ["--overrides", str(overrides), "--output-file", str(file), str(source)]
        alone = ["--no-deps"] if file.name in WITHOUT_DEPENDENCIES else []
        subprocess.run([*command, *layout, *more, *alone, *places], check=True)
    _add_other_builds(file)


def _add_other_builds(file: Path) -> None:
    text = file.read_text()
    for pin in read_pins(file):
        for each in OTHER_BUILDS.get((normalized(pin.name), pin.version), ()):
            if each not in pin.hashes:
                text = text.replace(f"{pin.line} \\\n", f"{pin.line} \\\n    --hash={each} \\\n")
    file.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
