"""uv fills virtual environments with wheels from where pip is told to look."""

import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from backend.settings import get_settings
from workers.environments.pip import Pip
from workers.environments.pip_options import read_options
from workers.environments.uv import Uv


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
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """It knows two distributions, of a folder, and no index."""
    wheel(tmp_path, "proctor_upper", "proctor_lower>=1")
    wheel(tmp_path, "proctor_lower")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return Pip(get_settings().runtime_python)


@pytest.mark.parametrize("provided", [{}, {"proctor-lower": Version("1.0")}])
async def test_what_is_seen_elsewhere_is_not_installed_again(pip: Pip, tmp_path: Path, provided: dict) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    await pip.make_environment(home, log)
    assert await Uv(pip).install(home, log, ["proctor-upper"], provided=provided), log.read_text()
    installed = {path.stem for path in home.glob("lib/python*/site-packages/proctor_*.py")}
    assert installed == {"proctor_upper"} | ({"proctor_lower"} if not provided else set())
    assert "proctor-upper==1.0" in log.read_text()


async def test_what_it_does_not_find_is_left_to_pip_with_its_words_in_the_log(pip: Pip, tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    await pip.make_environment(home, log)
    assert not await Uv(pip).install(home, log, ["proctor-upper", "proctor-nowhere"])
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
