"""Write the software bill of materials as CycloneDX JSON: `python scripts/sbom.py build/sbom.json`.

It lists the packages of `.venv` and `.runtime` as they are installed, and the vendored browser files with their hashes.
Packages that only development needs have the scope `excluded`.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.dependencies import ROOT, direct_requirements, normalized

Bom = dict[str, Any]

VENDOR = ROOT / "frontend" / "static" / "vendor"
NPM_PACKAGES = {"ace": ("ace-builds", "BSD-3-Clause"), "htmx": ("htmx.org", "0BSD"), "uplot": ("uplot", "MIT")}
"""By the name of a vendored folder: the package on npm and its license."""
_SHIPPED_EXTRAS = ("embedded", "train-cpu", "docker", "qlora", "gguf")


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("Name the file to write: python scripts/sbom.py build/sbom.json\n")
        return 2
    bom = make_bom(ROOT / ".venv" / "bin" / "python", ROOT / ".runtime" / "bin" / "python")
    if errors := validation_errors(bom):
        sys.stderr.write(f"The bill of materials does not match the CycloneDX schema: {errors}\n")
        return 1
    file = Path(arguments[0])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bom, indent=1) + "\n")
    sys.stdout.write(f"{file}: {len(bom['components'])} components, CycloneDX {bom['specVersion']}\n")
    return 0


def make_bom(python: Path, runtime: Path) -> Bom:
    bom = _environment(python)
    _exclude_unreachable(bom, direct_requirements(_SHIPPED_EXTRAS))
    known = {each["bom-ref"] for each in bom["components"]}
    for part in ("components", "dependencies"):
        key = "bom-ref" if part == "components" else "ref"
        bom[part] += [each for each in _environment(runtime)[part] if each[key] not in {*known, "root-component"}]
    bom["components"] += vendored_components()
    return bom


def validation_errors(bom: Bom) -> str:
    """Return what the CycloneDX JSON schema objects to; empty if nothing."""
    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom))
    return str(errors) if errors else ""


def vendored_components() -> list[Bom]:
    """Return one component per vendored library, with its files and their recorded SHA-256."""
    files: dict[str, list[Bom]] = {}
    for line in (VENDOR / "SHA256SUMS").read_text().splitlines():
        digest, path = line.split(maxsplit=1)
        folder, _, name = path.removeprefix("./").partition("/")
        described = {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        files.setdefault(folder, []).append(described)
    return [_vendored(folder, each) for folder, each in sorted(files.items())]


def _vendored(folder: str, files: list[Bom]) -> Bom:
    name, _, version = folder.rpartition("-")
    package, license_id = NPM_PACKAGES[name]
    return {
        "type": "library",
        "bom-ref": f"npm:{package}@{version}",
        "name": package,
        "version": version,
        "purl": f"pkg:npm/{package}@{version}",
        "licenses": [{"license": {"id": license_id}}],
        "components": files,
    }


def _environment(python: Path) -> Bom:
    """Return the packages of one virtual environment, without Proctor itself."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", str(python), "--sv", "1.6"]
    options = ["--output-reproducible", "--no-validate", "--pyproject", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    bom: Bom = json.loads(done.stdout)
    for each in [*bom["components"], *bom["metadata"]["tools"]["components"]]:
        each.pop("externalReferences", None)  # home pages; the schema takes 0.3 s to check each
    own = {each["bom-ref"] for each in bom["components"] if each["name"] == "proctor"}
    bom["components"] = [each for each in bom["components"] if each["bom-ref"] not in own]
    bom["dependencies"] = [each for each in bom["dependencies"] if each["ref"] not in own]
    for each in bom["dependencies"]:
        if "dependsOn" in each:
            each["dependsOn"] = [ref for ref in each["dependsOn"] if ref not in own]
    return bom


def _exclude_unreachable(bom: Bom, requirements: Iterable[str]) -> None:
    """Mark the components that no shipped requirement leads to."""
    depends_on = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    direct = {normalized(line) for line in requirements}
    reached: set[str] = set()
    waiting = [each["bom-ref"] for each in bom["components"] if normalized(each["name"]) in direct]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += depends_on.get(ref, [])
    for each in bom["components"]:
        if each["bom-ref"] not in reached:
            each["scope"] = "excluded"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
