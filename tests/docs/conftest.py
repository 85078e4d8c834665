"""The site, built once from the sources as they are; and browsers of every role."""

import subprocess
import sys
from pathlib import Path

import pytest

from backend.settings import PROJECT_ROOT
from tests.web_fixtures import *  # noqa: F403


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in a folder. A broken link, an unlisted page or an unknown directive is an error."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(folder)]
    built = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder
