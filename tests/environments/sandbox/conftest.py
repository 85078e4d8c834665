"""`run`: a program in the sandbox, made here, by an ordinary user, and inside an environment's server."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.settings import PROJECT_ROOT
from proctor_sandbox import Limits, Result, execute
from tests.envhost_fixture import HostProcess, package_files, prepared
from tests.environments.host.test_other_hosts import _become_ordinary_user
from workers.environments.client import EnvHost

Run = Callable[..., Result]
SECONDS = 60.0

_LOOP = """
import json, sys
from dataclasses import asdict
from proctor_sandbox import Limits, execute
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(asdict(execute(**{**request, "limits": Limits(**request["limits"])}))), flush=True)
"""
_IN_STEP = """
import json
from dataclasses import asdict
from proctor_sandbox import Limits, execute
request = json.loads(action.command)
observation.text = json.dumps(asdict(execute(**{**request, "limits": Limits(**request["limits"])})))
"""


@pytest.fixture(
    params=[
        "here",
        pytest.param("ordinary user", marks=pytest.mark.slow),
        pytest.param("env server", marks=pytest.mark.slow),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    match request.param:
        case "here":
            return execute
        case "ordinary user":
            if os.getuid():
                pytest.skip("an ordinary user runs all the other tests as one already")
            return request.getfixturevalue("run_as_ordinary_user")
        case _:
            return request.getfixturevalue("run_in_env_server")


def _request(source: str, limits: Limits | None = None, **given: Any) -> str:
    return json.dumps({"source": source, "limits": asdict(limits or Limits()), **given})


@pytest.fixture(scope="session")
def run_as_ordinary_user() -> Iterator[Run]:
    process = subprocess.Popen(
        [sys.executable, "-c", _LOOP],
        cwd=PROJECT_ROOT,
        env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)},  # noqa: TID251
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_become_ordinary_user,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(source: str, **given: Any) -> Result:
        process.stdin.write(_request(source, **given) + "\n")
        process.stdin.flush()
        return Result(**json.loads(process.stdout.readline()))

    yield run
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


@pytest.fixture(scope="session")
def run_in_env_server(host_process: HostProcess) -> Run:
    def run(source: str, **given: Any) -> Result:
        return asyncio.run(_step(host_process, _request(source, **given)))

    return run


async def _step(host: HostProcess, command: str) -> Result:
    files = package_files("programs", in_step=_IN_STEP, sessions=8)
    async with EnvHost(host.address) as client:
        hash_ = await prepared(client, files)
        resources = ResourcesSpec(memory_mb=768, sessions=8, execute=True)
        async with client.lease(hash_, resources) as server, server.session() as session:
            await session.reset({}, timeout=SECONDS)
            return Result(**json.loads((await session.step({"command": command}, timeout=SECONDS)).fields["text"]))
