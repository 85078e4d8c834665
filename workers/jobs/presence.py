"""What a worker says of itself: its row in `workers`, renewed every few seconds, with what this machine can do."""

import asyncio
import os
import shutil
import subprocess
import threading
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from backend.db.models import Worker
from backend.db.session import transaction
from backend.domain.errors import RolloutError
from backend.settings import get_settings

REPORT_SECONDS = 10.0

logger = structlog.get_logger(__name__)


class Presence:
    """Reports from a thread of its own until the worker leaves."""

    def __init__(self, name: str, queues: list[str]) -> None:
        self.name, self.queues = name, queues
        self._capabilities = machine()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self._left.set()
        self._thread.join(timeout=5)
        try:
            with transaction() as session:
                session.execute(delete(Worker).where(Worker.name == self.name))
        except DBAPIError:  # the database may have gone first; its row is pruned later
            logger.info("could not sign off", exc_info=True)

    def report(self) -> None:
        launcher = asyncio.run(launcher_in_force())
        capabilities = {**self._capabilities, **({"launcher": launcher} if launcher else {})}
        values = {"queues": self.queues, "capabilities": capabilities, "seen_at": func.now()}
        with transaction() as session:
            statement = insert(Worker).values(name=self.name, **values)
            session.execute(statement.on_conflict_do_update(index_elements=[Worker.name], set_=values))

    def _run(self) -> None:
        while True:
            try:
                self.report()
            except DBAPIError:
                logger.warning("could not report", exc_info=True)
            if self._left.wait(REPORT_SECONDS):
                return


def machine() -> dict[str, Any]:
    """What this machine offers, found without importing torch."""
    return {
        "flavour": _flavour(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "gpus": _gpus(),
        **{name: _version(name) for name in ("torch", "trl", "transformers")},
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _flavour() -> str:
    """`vllm` or `unsloth` where such an engine is installed, else `transformers`; `core` without any."""
    for name, flavour in (("vllm", "vllm"), ("unsloth", "unsloth"), ("trl", "transformers")):
        if _version(name):
            return flavour
    return "core"


def _gpus() -> list[dict[str, Any]]:
    if not (program := shutil.which("nvidia-smi")):
        return []
    asked = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (subprocess.SubprocessError, OSError):
        logger.warning("nvidia-smi does not answer", exc_info=True)
        return []
    pairs = [line.rsplit(",", 1) for line in lines if "," in line]
    return [{"name": name.strip(), "memory_mb": int(memory)} for name, memory in pairs if memory.strip().isdigit()]


async def launcher_in_force() -> str | None:
    """How the env host isolates foreign code; None while it does not answer."""
    from workers.environments.client import EnvHost  # aiohttp is not needed to begin work

    settings = get_settings()
    try:
        async with EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value()) as host:
            status = await host.status()
    except RolloutError:
        return None
    return str(status.get("launcher") or "") or None
