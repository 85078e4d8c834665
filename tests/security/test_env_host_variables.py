"""The env host gets its own settings and what installers need, and no secret of the installation or its user."""

from functools import partial
from pathlib import Path

import pytest

from backend.settings import Settings
from backend.supervisor.data_folder import DataFolder
from backend.supervisor.fleet import Address, Fleet

SECRETS = {
    "DATABASE_URL": "postgresql+psycopg://proctor:hidden-1@db/proctor",
    "REDIS_URL": "redis://:hidden-2@broker/0",
    "PROCTOR_SECRET_KEY": "hidden-3",
    "PROCTOR_TOKEN": "hidden-4",
    "PROCTOR_ARTIFACTS_URL": "s3://hidden-5@bucket",
    "OPENAI_API_KEY": "hidden-6",
    "HF_TOKEN": "hidden-7",
    "AWS_SECRET_ACCESS_KEY": "hidden-8",
}
NEEDED = {
    "PROCTOR_ENVHOST_TOKEN": "its own token",
    "PROCTOR_ALLOW_NETWORK": "none",
    "PROCTOR_ALLOW_PRIVATE_ENDPOINTS": "false",
    "PROCTOR_ENVIRONMENTS_GB": "3.5",
    "PIP_FIND_LINKS": "/srv/wheels",
    "https_proxy": "http://proxy:3128",
}


def test_variables_of_the_env_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **NEEDED}.items():
        monkeypatch.setenv(name, value)
    fleet = Fleet(DataFolder(tmp_path, 0), Settings(), Address("127.0.0.1", 1))
    start = fleet.env_host().start
    assert isinstance(start, partial)
    variables = start.args[1]
    assert {name: variables.get(name) for name in NEEDED} == NEEDED
    assert not [value for value in variables.values() if "hidden" in value or "***" in value]
    assert "hidden-1" in fleet.environment["DATABASE_URL"]  # the workers get it
    assert Settings(_env_file=None).allow_private_endpoints is False  # type: ignore[call-arg]
