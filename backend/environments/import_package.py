"""A foreign package made ready to run: its manifest in our words, an adapter where needed. Nothing is executed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from backend.domain.environments.foreign import ForeignPackage, PackageKind
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import MANIFEST_PATH, PackageInvalid, check_files, read_toml
from backend.domain.yaml_text import YamlInvalid, read_yaml
from backend.settings import PROJECT_ROOT

ADAPTERS = PROJECT_ROOT / "workers" / "environments" / "adapters"
_OURS = set(Manifest.model_fields) - {"proctor"}
_ORDER = ("spec_version", "name", "version", "description", "author", "type", "runtime", "app", "port", "variables")
_UVICORN = re.compile(r"\b([A-Za-z_][\w.]*:[A-Za-z_]\w*)\b")
_APP = re.compile(r"^app\s*(?::[^=\n]+)?=\s*\S", re.MULTILINE)
_DEPENDENCIES = re.compile(r"^dependencies\s*=\s*\[", re.MULTILINE)
_LIBRARY = re.compile(r"^verifiers\b", re.IGNORECASE)
_VERIFIERS = {PackageKind.VERIFIERS_V0: "verifiers==0.3.1", PackageKind.VERIFIERS_V1: "verifiers==0.4.0"}
_SERVED_BY = {
    PackageKind.VERIFIERS_V0: ["openenv>=0.10,<0.11"],
    PackageKind.VERIFIERS_V1: ["starlette", "uvicorn", "websockets>=13"],
}
"""Servers of the adapters; `openenv` and verifiers 0.4 need different versions of `mcp`."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class ReadyPackage:
    """Files that the env host can serve; the manifest has no `proctor:` block yet unless the author wrote one."""

    name: str
    kind: PackageKind
    files: dict[str, str]
    manifest: dict[str, Any]
    """The manifest without the block."""
    block: dict[str, Any] | None
    """The author's own `proctor:` block."""
    notes: list[str] = field(default_factory=list)
    """Changes, described for people."""


def make_ready(
    package: ForeignPackage, *, name: str = "", requires: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> ReadyPackage:
    """`requires` and `variables`: what the importer adds to what the package says. Raises PackageInvalid."""
    files, notes = dict(package.files), list[str]()
    if package.kind is PackageKind.OPENENV:
        if MANIFEST_PATH not in files:
            raise PackageInvalid(f"its {MANIFEST_PATH} is not a text that can be read")
        written = _read_manifest(files[MANIFEST_PATH])
        app = _app_of(written, files, notes)
    else:
        written = {"name": package.folder or _project(files).get("name", "")}
        app = _adapt(package.kind, files, notes)
        written["variables"] = {**OFFLINE, "VERIFIERS_MODULE": _module_of(package.kind, files)}
    block = written.get("proctor")
    manifest = _our_manifest(written, app, name or str(written.get("name") or package.folder), notes)
    if variables:
        manifest["variables"] = {**(manifest.get("variables") or {}), **variables}
    if requires:
        _require(files, requires)
        notes.append(f"Added to what it needs: {', '.join(requires)}.")
    files[MANIFEST_PATH] = write_manifest(manifest, "")
    check_files(files)
    return ReadyPackage(
        name=manifest["name"],
        kind=package.kind,
        files=files,
        manifest=manifest,
        block=block if isinstance(block, dict) else None,
        notes=notes,
    )


def write_manifest(manifest: Mapping[str, Any], block: str) -> str:
    """`openenv.yaml` with the text of a `proctor:` block below."""
    ordered = {key: manifest[key] for key in [*_ORDER, *manifest] if key in manifest}  # the database keeps no order
    text = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=100)
    return f"{text}\n{block.strip()}\n" if block.strip() else text


def environment_name(text: str) -> str:
    """A name that an environment may have, made of one that others gave."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if name and not name[0].isalpha():
        name = f"env_{name}"
    return name[:40].rstrip("_")


# the manifest


def _read_manifest(text: str) -> dict[str, Any]:
    try:
        written = read_yaml(text)
    except YamlInvalid as error:
        raise PackageInvalid(f"its {MANIFEST_PATH} cannot be read: {error}") from error
    if not isinstance(written, dict):
        raise PackageInvalid(f"its {MANIFEST_PATH} is not a mapping")
    return {str(key): value for key, value in written.items()}


def _our_manifest(written: Mapping[str, Any], app: str, name: str, notes: list[str]) -> dict[str, Any]:
    """What we understand of it, in a fixed order; the rest is named in the notes."""
    called = environment_name(name)
    if not called:
        raise PackageInvalid("the package has no name: give it one")
    unknown = [key for key in written if key not in _OURS and key != "proctor"]
    if unknown:
        notes.append(f"Left out of {MANIFEST_PATH}, because Proctor does not know it: {', '.join(unknown)}.")
    if called != written.get("name"):
        notes.append(f"Called {called} here; the package calls itself {str(written.get('name') or 'nothing')!r}.")
    kept: dict[str, Any] = {"spec_version": 1, "name": called}
    for key in ("version", "description", "author"):
        if isinstance(written.get(key), str | int | float):
            kept[key] = str(written[key])
    kept |= {"type": "space", "runtime": "fastapi", "app": app, "port": 8000}
    if isinstance(written.get("variables"), dict):
        kept["variables"] = {str(key): str(value) for key, value in written["variables"].items() if value is not None}
    for key in ("discovery", "validation"):
        if isinstance(written.get(key), dict):
            kept[key] = written[key]
    return kept


def _app_of(written: Mapping[str, Any], files: Mapping[str, str], notes: list[str]) -> str:
    app = written.get("app")
    if isinstance(app, str) and app.strip():
        return app.strip() if ":" in app else f"{app.strip()}:app"
    found = _app_in_dockerfile(files) or _app_in_sources(files)
    if not found:
        raise PackageInvalid(f"its {MANIFEST_PATH} names no `app`, and no file of it defines one")
    notes.append(f"Its {MANIFEST_PATH} names no `app`; taken from its files: {found}.")
    return found


def _app_in_dockerfile(files: Mapping[str, str]) -> str:
    for path, text in files.items():
        if PurePosixPath(path).name == "Dockerfile":
            for line in text.splitlines():
                if "uvicorn" in line and (found := _UVICORN.search(line.replace('"', " "))):
                    return found[1]
    return ""


def _app_in_sources(files: Mapping[str, str]) -> str:
    found = [path for path, text in files.items() if path.endswith(".py") and _APP.search(text)]
    found.sort(key=lambda path: (not path.endswith("app.py"), path.count("/"), path))
    return f"{found[0].removesuffix('.py').replace('/', '.')}:app" if found else ""


# verifiers


def _adapt(kind: PackageKind, files: dict[str, str], notes: list[str]) -> str:
    """Add the adapter and what it needs; returns the app."""
    for folder in (ADAPTERS / "common", ADAPTERS / str(kind)):
        for path in sorted(folder.rglob("*.py")):
            files[path.relative_to(folder).as_posix()] = path.read_text(encoding="utf-8")
    project = _project(files)
    needed = [str(line) for line in project.get("dependencies") or [] if not _LIBRARY.match(str(line))]
    asked = [str(line) for line in project.get("dependencies") or [] if _LIBRARY.match(str(line))]
    files["pyproject.original.toml"] = files["pyproject.toml"]
    files["pyproject.toml"] = _pyproject(project, [_VERIFIERS[kind], *_SERVED_BY[kind], *needed])
    notes.append(
        f"Served through an adapter that plays it with {_VERIFIERS[kind]}"
        + (f" (it asks for {', '.join(asked)})." if asked else ".")
    )
    return "proctor_adapter.app:app"


def _project(files: Mapping[str, str]) -> dict[str, Any]:
    project = read_toml(files.get("pyproject.toml", "")).get("project")
    return project if isinstance(project, dict) else {}


def _pyproject(project: Mapping[str, Any], needed: Sequence[str]) -> str:
    lines = "".join(f"    {_quoted(line)},\n" for line in needed)
    name, version = _quoted(str(project.get("name") or "imported")), _quoted(str(project.get("version") or "0.0.0"))
    return f"[project]\nname = {name}\nversion = {version}\ndependencies = [\n{lines}]\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _module_of(kind: PackageKind, files: Mapping[str, str]) -> str:
    """Return the module that the library imports: named like the project, else the one with its entry point."""
    wanted = str(_project({"pyproject.toml": files["pyproject.original.toml"]}).get("name", "")).replace("-", "_")
    modules = [_as_module(path) for path in files if path.endswith(".py") and not path.startswith("proctor_adapter/")]
    sign = r"^def load_environment\(" if kind is PackageKind.VERIFIERS_V0 else r"\bTaskset\b"
    if wanted in modules:
        return wanted
    found = [_as_module(path) for path, text in files.items() if re.search(sign, text, re.MULTILINE)]
    found = sorted((name for name in found if not name.startswith("proctor_adapter")), key=lambda name: name.count("."))
    if not found:
        raise PackageInvalid("no module of it has a verifiers environment")
    return found[0]


def _as_module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _require(files: dict[str, str], requires: Sequence[str]) -> None:
    """Add requirements to the file that declares the package's own."""
    for line in requires:
        if not re.match(r"^[A-Za-z0-9][^\n\r\"']*$", line):
            raise PackageInvalid(f"{line!r} is not a requirement")
    text = files.get("pyproject.toml", "")
    added = "".join(f"\n    {_quoted(line)}," for line in requires)
    if "dependencies" in _project(files) and _DEPENDENCIES.search(text):
        files["pyproject.toml"] = _DEPENDENCIES.sub(lambda found: found[0] + added, text, count=1)
        return
    path = next((path for path in ("requirements.txt", "server/requirements.txt") if path in files), None)
    path = path or "requirements.txt"
    files[path] = "\n".join([files.get(path, "").rstrip(), *requires]).strip() + "\n"
