"""An installation accepts only pinned releases, and only files whose SHA-256 is listed."""

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from backend.settings import PROJECT_ROOT
from scripts import audit, check_skips, sbom
from scripts.dependencies import (
    FLAVOURS,
    direct_requirements,
    extra_requirements,
    normalized,
    read_pins,
    worker_requirements,
)

pytestmark = pytest.mark.slow

LOCKS = (
    "constraints.txt",
    "constraints-runtime.txt",
    "constraints-installers.txt",
    "constraints-instruct.txt",
    "constraints-gpu-vllm.txt",
)
UNSLOTH = "constraints-gpu-unsloth.txt"


def make_wheel(folder: Path, name: str, body: str, requires: str = "") -> str:
    """Write NAME-1.0 as a wheel and return its SHA-256."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text.encode())}\n"
        for path, text in files.items()
    )
    file = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is the only place where the installer looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


def install(tmp_path: Path, tool: str, pins: str, *more: str) -> tuple[int, str, set[str]]:
    """Run the installer for `outer`, and return its status, its errors and the modules that it left."""
    (tmp_path / "pins.txt").write_text(pins)
    target = tmp_path / "target"
    command = [sys.executable, "scripts/install.py", sys.executable, "--tool", tool, "--target", str(target)]
    done = subprocess.run(
        [*command, "--pins", str(tmp_path / "pins.txt"), *more, "outer"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr, {path.name for path in target.glob("*.py")}


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_a_file_whose_hash_is_listed_is_installed_with_its_dependencies(tmp_path: Path, index: Path, tool: str) -> None:
    outer = make_wheel(index, "outer", "x = 1\n", "Requires-Dist: inner\n")
    inner = make_wheel(index, "inner", "x = 1\n")

    result = install(
        tmp_path, tool, f"outer==1.0 \\\n    --hash=sha256:{outer}\ninner==1.0 \\\n    --hash=sha256:{inner}\n"
    )

    assert result == (0, "", {"outer.py", "inner.py"})


@pytest.mark.parametrize("tool", ["uv", "pip"])
@pytest.mark.parametrize("swapped", ["outer", "inner"])
def test_a_file_that_was_swapped_is_refused(tmp_path: Path, index: Path, tool: str, swapped: str) -> None:
    hashes = {
        "outer": make_wheel(index, "outer", "x = 1\n", "Requires-Dist: inner\n"),
        "inner": make_wheel(index, "inner", "x = 1\n"),
    }
    make_wheel(index, swapped, "x = 'evil'\n", "Requires-Dist: inner\n" if swapped == "outer" else "")

    status, errors, modules = install(
        tmp_path, tool, "".join(f"{name}==1.0 --hash=sha256:{each}\n" for name, each in hashes.items())
    )

    assert status == 1
    assert "not the one that the constraints file describes" in errors
    assert f"{swapped}.py" not in modules


@pytest.mark.parametrize("tool", ["uv", "pip"])
@pytest.mark.parametrize("pin", ["", "inner==1.0\n"])
def test_a_dependency_without_a_known_hash_is_refused(tmp_path: Path, index: Path, tool: str, pin: str) -> None:
    outer = make_wheel(index, "outer", "x = 1\n", "Requires-Dist: inner\n")
    make_wheel(index, "inner", "x = 1\n")

    status, errors, modules = install(tmp_path, tool, f"outer==1.0 --hash=sha256:{outer}\n{pin}")

    assert status == 1
    assert "no hash for inner==1.0" in errors
    assert modules == set()


def test_only_a_package_that_is_named_as_unpinned_is_installed_without_a_hash(tmp_path: Path, index: Path) -> None:
    outer = make_wheel(index, "outer", "x = 1\n", "Requires-Dist: inner\n")
    make_wheel(index, "inner", "x = 1\n")

    status, errors, modules = install(tmp_path, "uv", f"outer==1.0 --hash=sha256:{outer}\n", "--unpinned", "inn*")

    assert (status, modules) == (0, {"outer.py", "inner.py"})
    assert "no hash is known for inner==1.0" in errors


@pytest.mark.parametrize("name", [*LOCKS, UNSLOTH])
def test_every_pin_has_hashes_and_no_file_names_an_index(name: str) -> None:
    text = (PROJECT_ROOT / name).read_text()
    pins = read_pins(PROJECT_ROOT / name)

    assert len(pins) == len([line for line in text.splitlines() if line and not line.startswith(" ")])
    assert [pin.line for pin in pins if not pin.hashes] == []
    assert not re.search(r"://|file:|@|--index|--find-links|/", text)
    assert [pin.line for pin in pins if "+" in pin.version] == []


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_pins_of_a_flavour_satisfy_what_it_requires(flavour: str) -> None:
    described = FLAVOURS[flavour]
    pinned = {normalized(pin.name): pin.version for pin in read_pins(PROJECT_ROOT / described.pins)}

    for line in worker_requirements(flavour):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[normalized(requirement.name)]), line


def test_everything_that_make_setup_installs_is_pinned() -> None:
    pinned = {normalized(pin.name): pin.version for pin in read_pins(PROJECT_ROOT / "constraints.txt")}

    for line in direct_requirements(["embedded", "train-cpu", "qlora", "gguf", "docker"], ["dev"]):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[normalized(requirement.name)]), line


def test_everything_that_make_instruct_installs_is_pinned() -> None:
    pinned = {normalized(pin.name): pin.version for pin in read_pins(PROJECT_ROOT / "constraints-instruct.txt")}

    for line in extra_requirements("instruct"):
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[normalized(requirement.name)]), line


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile.api", "Dockerfile.worker", ".ci/run"])
def test_nothing_is_installed_past_the_verifying_installer(name: str) -> None:
    commands = [line for line in (PROJECT_ROOT / name).read_text().splitlines() if "pip install" in line]

    assert [line for line in commands if "--require-hashes" not in line] == []


def test_the_bill_of_materials_is_valid_and_lists_packages_and_vendored_files() -> None:
    bom = sbom.make_bom(PROJECT_ROOT / ".venv" / "bin" / "python", PROJECT_ROOT / ".runtime" / "bin" / "python")
    components = {each["name"].lower(): each for each in bom["components"]}

    assert sbom.validation_errors(bom) == ""
    assert {"fastapi", "celery", "openenv", "htmx.org", "uplot", "ace-builds"} <= components.keys()
    assert components["djlint"]["scope"] == "excluded"
    assert "scope" not in components["fastapi"]
    htmx = next(each for each in components["htmx.org"]["components"] if each["name"] == "htmx.min.js")
    file = sbom.VENDOR / f"htmx-{components['htmx.org']['version']}" / "htmx.min.js"
    assert htmx["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}]
    assert not re.search(r"file://|/work|/root", str(bom))


def test_a_bill_of_materials_that_breaks_the_schema_is_refused() -> None:
    broken = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"type": "no such type", "name": "x"}]}

    assert sbom.validation_errors(broken)
    assert not sbom.validation_errors(broken | {"components": []})


def test_an_advisory_is_reported_and_a_source_that_knows_nothing_is_none() -> None:
    known = '{"name": "demo", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}'
    unknown = '{"name": "other", "skip_reason": "not found"}'

    assert audit.advisories(f'{{"dependencies": [{known}, {unknown}]}}', "") == ["demo 1.0: CVE-1, fixed in 1.1"]
    with pytest.raises(audit.NoSource, match="knows 0 of 1"):
        audit.advisories(f'{{"dependencies": [{unknown}]}}', "")
    with pytest.raises(audit.NoSource, match="name resolution"):
        audit.advisories("", "Traceback\nConnectionError: name resolution\n")


def test_an_audit_without_a_source_is_a_visible_skip_that_ci_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "SECONDS", 0.0)
    browser = tmp_path / "browser.xml"
    browser.write_text('<testsuite><testcase classname="tests.browser.test_a" name="a"/></testsuite>')
    report = tmp_path / "audit.xml"

    assert audit.main([str(report)]) == 0

    assert "pip-audit: SKIPPED: no advisory source reachable" in capsys.readouterr().out
    assert check_skips.main([str(browser), str(report)]) == 0
    report.write_text(report.read_text().replace("no advisory source reachable", "forgotten"))
    assert check_skips.main([str(browser), str(report)]) == 1


def test_tools_for_development_do_not_slow_the_start() -> None:
    """`jsonschema` imports whatever checks a format, if it is installed."""
    code = "import jsonschema, sys; sys.exit(' '.join({'rfc3987_syntax', 'uri_template'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
