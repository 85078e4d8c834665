"""The site, built once from the sources as they are; and browsers of every role."""

import subprocess
import sys
from pathlib import Path

import pytest

from backend.settings import PROJECT_ROOT
from backend.web.docs_site import DOCS_FOLDER
from tests.web_fixtures import *  # noqa: F403


@pytest.fixture(scope="session")
def site() -> Path:
    """The site of the sources as they are: what changed since `make setup` is built again, in place.

    A broken link, an unlisted page or an unknown directive is an error, there as here.
    """
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["-d", "build/doctrees", "docs", str(DOCS_FOLDER)]
    built = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return DOCS_FOLDER
