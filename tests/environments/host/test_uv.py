"""uv resolves requirements to wheels, from where pip is configured to look."""

import zipfile
from pathlib import Path

import pytest

from backend.settings import get_settings
from workers.environments.pip_options import read_options
from workers.environments.uv import NotResolved
from workers.environments.wheels import Installer


def wheel(folder: Path, name: str, *needs: str) -> None:
    """Version 1.0 of a distribution with one module."""
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {n}\n" for n in needs)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """It knows two distributions, of a folder, and no index."""
    wheel(tmp_path, "proctor_upper", "proctor_lower>=1")
    wheel(tmp_path, "proctor_lower")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return Installer(get_settings().runtime_python, tmp_path / "environments")


async def test_requirements_come_to_wheels_with_their_versions(installer: Installer, tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    wheels = await installer.index.resolve(["proctor-upper"], log)
    assert [(wheel.name, wheel.version) for wheel in wheels] == [("proctor-lower", "1.0"), ("proctor-upper", "1.0")]
    await installer.install(home, wheels, log)
    installed = {path.stem for path in installer.site_packages(home).glob("proctor_*.py")}
    assert installed == {"proctor_upper", "proctor_lower"}


async def test_what_is_not_found_is_named_and_logged(installer: Installer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(NotResolved, match="proctor-nowhere was not found"):
        await installer.index.resolve(["proctor-upper", "proctor-nowhere"], log)
    assert "proctor-nowhere was not found" in log.read_text()


def test_a_later_place_of_pips_configuration_wins() -> None:
    listed = """\
:env:.find-links='/wheels'
global.cert='/certificates.pem'
global.find-links='/other'
global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'
install.cert='/own.pem'
download.cert='/of-another-command.pem'
rubbish
"""
    assert read_options(listed) == {
        "find-links": "/wheels",
        "cert": "/own.pem",
        "extra-index-url": "https://a.example/simple\nhttps://b.example/simple",
    }
