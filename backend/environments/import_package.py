"""Prepare a foreign package to run: a manifest that Proctor can read, and an adapter if needed. Nothing is executed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import yaml

from backend.domain.environments.foreign import ForeignPackage, PackageKind
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import MANIFEST_PATH, PackageInvalid, check_files, read_toml
from backend.domain.text import JsonObject, quoted
from backend.domain.yaml_text import YamlInvalid, read_yaml
from backend.settings import PROJECT_ROOT

ADAPTERS = PROJECT_ROOT / "workers" / "environments" / "adapters"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_KNOWN_KEYS = set(Manifest.model_fields)
_ORDER = ("spec_version", "name", "version", "description", "author", "type", "runtime", "app", "port", "variables")
_UVICORN = re.compile(r"\b([A-Za-z_][\w.]*:[A-Za-z_]\w*)\b")
_APP = re.compile(r"^app\s*(?::[^=\n]+)?=\s*\S", re.MULTILINE)
_DEPENDENCIES = re.compile(r"^dependencies\s*=\s*\[", re.MULTILINE)
_LIBRARY = re.compile(r"^verifiers\b", re.IGNORECASE)
_VERIFIERS = {PackageKind.VERIFIERS_V0: "verifiers==0.3.1", PackageKind.VERIFIERS_V1: "verifiers==0.4.0"}
_SERVERS = {
    PackageKind.VERIFIERS_V0: ["openenv>=0.10,<0.11"],
    PackageKind.VERIFIERS_V1: ["starlette", "uvicorn", "websockets>=13"],
}
"""Servers of the adapters; `openenv` and verifiers 0.4 need different versions of `mcp`."""


@dataclass(frozen=True, slots=True)
class ReadyPackage:
    """Files that the env host can serve."""

    name: str
    kind: PackageKind
    files: dict[str, str]
    manifest: JsonObject
    """The manifest without the `proctor:` block."""
    block: JsonObject | None
    """The author's own `proctor:` block."""
    notes: list[str] = field(default_factory=list)
    """Changes, described for people."""


def make_ready(
    package: ForeignPackage, *, name: str = "", requires: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> ReadyPackage:
    """Add a manifest and an adapter. `requires`, `variables`: the importer's additions. Raises PackageInvalid."""
    files, notes = dict(package.files), list[str]()
    if package.kind is PackageKind.OPENENV:
        if MANIFEST_PATH not in files:
            raise PackageInvalid(f"its {MANIFEST_PATH} is not a text that can be read")
        try:
            written = read_yaml(files[MANIFEST_PATH])
        except YamlInvalid as error:
            raise PackageInvalid(f"its {MANIFEST_PATH} cannot be read: {error}") from error
        if not isinstance(written, dict):
            raise PackageInvalid(f"its {MANIFEST_PATH} is not a mapping")
        written = {str(key): value for key, value in written.items()}
        app = _find_app(written.get("app"), files, notes)
    else:
        project = _project(files)
        written = {"name": package.folder or project.get("name", "")}
        app = _add_adapter(package.kind, project, files, notes)
        written["variables"] = {**OFFLINE, "VERIFIERS_MODULE": _verifiers_module(package.kind, project, files)}
    block = written.get("proctor")
    manifest = _readable_manifest(written, app, name or str(written.get("name") or package.folder), notes)
    if variables:
        manifest["variables"] = {**(manifest.get("variables") or {}), **variables}
    if requires:  # in the file that declares the package's own
        for line in requires:
            if not re.match(r"^[A-Za-z0-9][^\n\r\"']*$", line):
                raise PackageInvalid(f"{line!r} is not a requirement")
        text = files.get("pyproject.toml", "")
        if "dependencies" in _project(files) and _DEPENDENCIES.search(text):
            added = "".join(f"\n    {quoted(line)}," for line in requires)
            files["pyproject.toml"] = _DEPENDENCIES.sub(lambda match: match[0] + added, text, count=1)
        else:
            candidates = ("requirements.txt", "server/requirements.txt")
            path = next((path for path in candidates if path in files), candidates[0])
            files[path] = "\n".join([files.get(path, "").rstrip(), *requires]).strip() + "\n"
        notes.append(f"Added requirements: {', '.join(requires)}.")
    files[MANIFEST_PATH] = write_manifest(manifest, "")
    check_files(files)
    block = block if isinstance(block, dict) else None
    return ReadyPackage(manifest["name"], package.kind, files, manifest, block, notes)


def write_manifest(manifest: Mapping[str, object], block: str) -> str:
    """Return `openenv.yaml` followed by the text of a `proctor:` block."""
    ordered = {key: manifest[key] for key in [*_ORDER, *manifest] if key in manifest}  # the database keeps no order
    text = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=100)
    return f"{text}\n{block.strip()}\n" if block.strip() else text


def environment_name(text: str) -> str:
    """Turn any name into a valid environment name."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if name and not name[0].isalpha():
        name = f"env_{name}"
    return name[:40].rstrip("_")


def _readable_manifest(written: JsonObject, app: str, name: str, notes: list[str]) -> JsonObject:
    """Keep the keys that Proctor knows, in a fixed order; list the others in the notes."""
    valid_name = environment_name(name)
    if not valid_name:
        raise PackageInvalid("the package has no name: give it one")
    if unknown := [key for key in written if key not in _KNOWN_KEYS]:
        notes.append(f"Removed from {MANIFEST_PATH}, because Proctor does not know it: {', '.join(unknown)}.")
    if valid_name != written.get("name"):
        notes.append(f"Named {valid_name} here; the package's own name is {str(written.get('name') or 'nothing')!r}.")
    kept: JsonObject = {"spec_version": 1, "name": valid_name}
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


def _find_app(app: object, files: Mapping[str, str], notes: list[str]) -> str:
    """Return the manifest's app, or else the app that a Dockerfile starts or a source file defines."""
    if isinstance(app, str) and app.strip():
        return app.strip() if ":" in app else f"{app.strip()}:app"
    dockerfiles = [text for path, text in files.items() if PurePosixPath(path).name == "Dockerfile"]
    lines = [line.replace('"', " ") for text in dockerfiles for line in text.splitlines() if "uvicorn" in line]
    found = next((match[1] for line in lines if (match := _UVICORN.search(line))), "")
    if not found:
        paths = [path for path, text in files.items() if path.endswith(".py") and _APP.search(text)]
        paths.sort(key=lambda path: (not path.endswith("app.py"), path.count("/"), path))
        if not paths:
            raise PackageInvalid(f"its {MANIFEST_PATH} names no `app`, and no file of it defines one")
        found = f"{paths[0].removesuffix('.py').replace('/', '.')}:app"
    notes.append(f"Its {MANIFEST_PATH} names no `app`; taken from its files: {found}.")
    return found


def _project(files: Mapping[str, str]) -> JsonObject:
    project = read_toml(files.get("pyproject.toml", "")).get("project")
    return project if isinstance(project, dict) else {}


def _add_adapter(kind: PackageKind, project: JsonObject, files: dict[str, str], notes: list[str]) -> str:
    """Add the adapter and its requirements; return the app."""
    for folder in (ADAPTERS / "common", ADAPTERS / str(kind)):
        for path in sorted(folder.rglob("*.py")):
            files[path.relative_to(folder).as_posix()] = path.read_text(encoding="utf-8")
    declared = [str(line) for line in project.get("dependencies") or []]
    verifiers = [line for line in declared if _LIBRARY.match(line)]
    others = [line for line in declared if not _LIBRARY.match(line)]
    requirements = "".join(f"    {quoted(line)},\n" for line in [_VERIFIERS[kind], *_SERVERS[kind], *others])
    name, version = quoted(str(project.get("name") or "imported")), quoted(str(project.get("version") or "0.0.0"))
    files["pyproject.original.toml"] = files["pyproject.toml"]
    files["pyproject.toml"] = f"[project]\nname = {name}\nversion = {version}\ndependencies = [\n{requirements}]\n"
    requested = f" (it requests {', '.join(verifiers)})" if verifiers else ""
    notes.append(f"Served through an adapter that plays it with {_VERIFIERS[kind]}{requested}.")
    return "proctor_adapter.app:app"


def _verifiers_module(kind: PackageKind, project: JsonObject, files: Mapping[str, str]) -> str:
    """Return the module that the library imports: named like the project, else the one with its entry point."""
    sources = {
        path.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): text
        for path, text in files.items()
        if path.endswith(".py") and not path.startswith("proctor_adapter/")
    }
    project_module = str(project.get("name", "")).replace("-", "_")
    if project_module in sources:
        return project_module
    entry = r"^def load_environment\(" if kind is PackageKind.VERIFIERS_V0 else r"\bTaskset\b"
    found = [name for name, text in sources.items() if re.search(entry, text, re.MULTILINE)]
    if not found:
        raise PackageInvalid("no module of it has a verifiers environment")
    return min(found, key=lambda name: name.count("."))
