"""What a worker says of itself: its row in `workers`, renewed every few seconds, with what this machine can do."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from backend.core.artifacts import read_store_id
from backend.core.session import transaction
from backend.core.tables import Worker
from backend.domain.checkpoints.exports import CONVERTER
from backend.domain.errors import RolloutError
from backend.domain.vocabulary import Queue
from backend.settings import PROJECT_ROOT, get_settings

REPORT_SECONDS = 10.0
ENGINES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "vllm", "unsloth")
MACHINE_MODULE = "workers.models.machine"
"""Says what torch reaches here, in a process of its own."""
PROBE_SECONDS = 120.0
PROBE_AFTER_SECONDS = 1.0
"""Torch is asked after the first report: a worker is there before torch has been imported once."""

logger = structlog.get_logger(__name__)


class Presence:
    """Reports from a thread of its own until the worker leaves."""

    def __init__(self, name: str, queues: list[str]) -> None:
        self.name, self.queues = name, queues
        self._capabilities = machine()
        self._is_asked = "torch" not in self._capabilities["engines"] or not _is_for_models(queues)
        """Has torch told what it reaches?"""
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
        capabilities = {**self._capabilities, **asyncio.run(launcher_in_force()), "artifacts": _store()}
        values = {"queues": self.queues, "capabilities": capabilities, "seen_at": func.now()}
        with transaction() as session:
            statement = insert(Worker).values(name=self.name, **values)
            session.execute(statement.on_conflict_do_update(index_elements=[Worker.name], set_=values))

    def tell(self, found: Mapping[str, Any]) -> None:
        """What the machine said when it was asked; the next report has it."""
        converter = {CONVERTER: str(found["converter"])} if found.get("converter") else {}
        self._capabilities["engines"] |= converter
        self._capabilities |= {name: found[name] for name in ("cuda", "cuda_devices", "bf16") if name in found}

    def _run(self) -> None:
        while True:
            try:
                self.report()
            except DBAPIError:
                logger.warning("could not report", exc_info=True)
            if self._left.wait(PROBE_AFTER_SECONDS if not self._is_asked else REPORT_SECONDS):
                return
            if not self._is_asked:
                self._is_asked = True
                self.tell(ask_machine())


def _store() -> str:
    """Id of the artifact store that this machine reads; empty where it reads none. Looked up each time: a folder that
    is not mounted any more is another store."""
    try:
        return read_store_id()
    except Exception:  # each driver has errors of its own
        logger.warning("the artifact store cannot be read", exc_info=True)
        return ""


def _is_for_models(queues: Sequence[str]) -> bool:
    return any(queue.startswith(Queue.GPU) for queue in queues)


def machine() -> dict[str, Any]:
    """What this machine offers, found without importing torch."""
    engines = _packages()
    return {
        "flavour": _flavour(engines),
        "host": os.uname().nodename,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "gpus": _gpus(),
        "engines": engines,
    }


def _packages() -> dict[str, str]:
    """Versions of the engines that are installed."""
    found = {}
    for name in ENGINES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _flavour(engines: Mapping[str, str]) -> str:
    """`vllm` or `unsloth` where such an engine is installed, else `transformers`; `core` without any."""
    for name, flavour in (("vllm", "vllm"), ("unsloth", "unsloth"), ("trl", "transformers")):
        if name in engines:
            return flavour
    return "core"


def ask_machine() -> dict[str, Any]:
    """Empty where torch does not answer."""
    command = [sys.executable, "-m", MACHINE_MODULE]
    try:
        done = subprocess.run(
            command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        logger.warning("torch does not say what it reaches", exc_info=True)
        return {}
    return found


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


async def launcher_in_force() -> dict[str, str]:
    """How the env host isolates foreign code, and what is wrong with that; empty while it does not answer."""
    from workers.environments.client import EnvHost  # aiohttp is not needed to begin work

    settings = get_settings()
    try:
        async with EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value()) as host:
            status = await host.status()
    except RolloutError:
        return {}
    found = {"launcher": status.get("launcher"), "launcher_warning": dict(status.get("probe") or {}).get("warning")}
    return {name: str(value)[:1000] for name, value in found.items() if value}
