"""Export a package as a complete standalone OpenEnv package: the author's files plus generated ones.

Existing files stay unchanged, except that a manifest without `validation:` gets one, which `openenv validate` requires.
"""

import ast
import re
from collections.abc import Mapping

import yaml

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.yaml_text import read_yaml
from backend.environments.scaffold import SCAFFOLD, fill, requirements_of
from backend.environments.validation import parse_python
from backend.settings import PROJECT_ROOT

PARTS = PROJECT_ROOT / "workers" / "library" / "exported"
SANDBOX = PROJECT_ROOT / "proctor_sandbox"


def complete_package(files: Mapping[str, str], manifest: Manifest) -> dict[str, str]:
    """Return all files of the export, text by path. The README gets the metadata that the Hub reads."""
    whole = dict(files)
    if "validation" not in (read_yaml(files[MANIFEST_PATH]) or {}):
        whole[MANIFEST_PATH] = files[MANIFEST_PATH].rstrip() + "\n" + _validation(manifest)
    title = manifest.name.replace("_", " ").capitalize()
    words = {
        "__NAME__": manifest.name,
        "__CLASS__": "".join(part.capitalize() for part in manifest.name.split("_")),
        "__TITLE__": title,
        # one line that is safe between quotes
        "__DESCRIPTION__": re.sub(r'[\\"\x00-\x1f]+', " ", manifest.description).strip()[:300]
        or "An OpenEnv environment",
        "__APP__": manifest.app,
        "__PORT__": str(manifest.port),
    }
    parts = {path: fill((PARTS / name).read_text("utf-8"), words) for path, name in _PARTS.items()}
    parts |= {path: (SCAFFOLD / path).read_text("utf-8") for path in (".dockerignore", "server/Dockerfile")}
    if "inference.py" in files:
        del parts["inference_words.py"]
    if any(path.endswith("Dockerfile") for path in files):
        del parts["server/Dockerfile"]
        parts["server/Dockerfile"] = files.get("server/Dockerfile") or files["Dockerfile"]
    parts["server/requirements.txt"] = requirements_of(files.get("pyproject.toml", ""))
    module, _, attribute = manifest.app.partition(":")
    if manifest.app != "server.app:app" and module != "server.app":
        parts["server/app.py"] = f'"""The server."""\n\nfrom {module} import {attribute or "app"} as app\n'
        parts["server/__init__.py"] = ""
    if _needs_sandbox(files):
        parts |= {f"proctor_sandbox/{path.name}": path.read_text("utf-8") for path in sorted(SANDBOX.glob("*.py"))}
    for path, text in parts.items():
        whole.setdefault(path, text)
    if not whole["README.md"].startswith("---\n"):
        front = {"title": title, "sdk": "docker", "app_port": manifest.port, "tags": ["openenv"]}
        whole["README.md"] = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n{whole['README.md']}"
    return whole


def for_space(files: Mapping[str, str], manifest: Manifest) -> dict[str, str]:
    """Return the package as a Hugging Face Space, with its Dockerfile at the top."""
    whole = complete_package(files, manifest)
    whole.setdefault("Dockerfile", whole["server/Dockerfile"])
    return whole


_PARTS = {
    "inference.py": "inference.py",
    "inference_words.py": "inference_words.py",
    "client.py": "client.txt",
    "README.md": "readme.txt",
    "pyproject.toml": "pyproject.txt",
}


def _validation(manifest: Manifest) -> str:
    episode, resources = manifest.proctor.episode, manifest.proctor.resources
    network = "no-network" if resources.network == "none" else "public"
    ranges = [(column.weight, column.range) for column in manifest.columns]
    bounds = [sorted(weight * end for end in limits) for weight, limits in ranges if limits]
    known = len(bounds) == len(ranges)
    low, high = (sum(each[0] for each in bounds), sum(each[1] for each in bounds)) if known else (0.0, 1.0)
    block = {
        "reward": {"range": [round(low, 9), round(high, 9)], "oracle_tolerance": 0.0, "floor_margin": 0.1},
        "resources": {
            "cpu": float(resources.cpus),
            "memory_mb": resources.memory_mb,
            "disk_mb": 512,
            "episode_timeout_s": min(float(episode.episode_timeout_seconds), 3600.0),
        },
        "capabilities": {
            "verifier": {"kind": "reward_channel"},
            "declared_task_count": {"train": manifest.proctor.tasks.train, "heldout": manifest.proctor.tasks.heldout},
        },
        "types": {"tags": ["multi-turn" if episode.max_turns > 1 else "single-turn"]},
        "network": {"mode": network},
    }
    return yaml.safe_dump({"validation": block}, sort_keys=False)


def _needs_sandbox(files: Mapping[str, str]) -> bool:
    """Return whether the code imports `proctor_sandbox`, to run programs that a model wrote."""
    for path, text in files.items():
        tree = parse_python("", text) if path.endswith(".py") else None
        for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "proctor_sandbox" for name in names):
                return True
    return False
