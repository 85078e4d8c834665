"""Packages that many tests here share, so that each is started once."""

import pytest_asyncio

from tests.envhost_fixture import package_files, prepared
from workers.environments.client import EnvHost

MISBEHAVE = """
import os, time
match action.command:
    case "raise": raise ValueError("bad move")
    case "sleep": time.sleep(60)
    case "spin":
        while True: pass
    case "exit": os._exit(3)
    case "nan column": observation.metadata = {"rewards": {"gain": float("nan")}}
    case "text column": observation.metadata = {"rewards": {"gain": "a lot"}}
    case "list of columns": observation.metadata = {"rewards": [1.0]}
    case "nan reward": observation.reward, observation.metadata = float("nan"), {}
    case "scalar": observation.metadata = {}
    case "huge": observation.text = "x" * 9_000_000
    case "large": observation.text = "x" * 5_000_000
    case "print": print("y" * 1_000_000)
    case "never done": observation.done = False
"""

RUN_CODE = """
scope = {}
try:
    exec(action.command, scope)
    observation.text = str(scope.get("result"))
except BaseException as error:
    observation.text = f"{type(error).__name__}: {error}"
"""


@pytest_asyncio.fixture
async def misbehaving(env_host: EnvHost) -> str:
    """The hash of a counter that does what its action's `command` says."""
    return await prepared(env_host, package_files("misbehaving", in_step=MISBEHAVE))


@pytest_asyncio.fixture
async def attacker(env_host: EnvHost) -> str:
    """The hash of a package that runs the code in its action's `command` and returns `result`."""
    return await prepared(env_host, package_files("attacker", in_step=RUN_CODE, sessions=8))
