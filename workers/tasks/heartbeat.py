"""A worker's row in `workers`: renewed every few seconds, with the capabilities of its machine."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

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
FLAVOURS = {"vllm": "vllm", "unsloth": "unsloth", "trl": "transformers"}
"""Flavor of a worker by its first installed engine."""
MACHINE_MODULE = "workers.models.machine"
"""Prints what torch can use, in a separate process."""
PROBE_SECONDS = 120.0
PROBE_AFTER_SECONDS = 1.0
"""Torch is probed after the first report, because importing it takes a while."""

logger = structlog.get_logger(__name__)


class WorkerHeartbeat(threading.Thread):
    """Reports in a thread until the worker leaves."""

    def __init__(self, name: str, queues: list[str]) -> None:
        super().__init__(name="worker heartbeat", daemon=True)
        self.worker, self.queues = name, queues
        self._engines = installed_engines()
        self._capabilities = machine_capabilities(self._engines)
        self._needs_probe = "torch" in self._engines and any(queue.startswith(Queue.GPU) for queue in queues)
        self.left = threading.Event()

    def leave(self) -> None:
        self.left.set()
        self.join(timeout=5)
        try:
            with transaction() as session:
                session.execute(delete(Worker).where(Worker.name == self.worker))
        except DBAPIError:  # the database may have ended first; the row is deleted later
            logger.info("could not sign off", exc_info=True)

    def report(self) -> None:
        try:
            # Read each time: a folder that is no longer mounted is another store.
            store = read_store_id()
        except Exception:  # each driver has its own errors
            logger.warning("the artifact store cannot be read", exc_info=True)
            store = ""
        capabilities = {**self._capabilities, **asyncio.run(launcher_status()), "artifacts": store}
        values = {"queues": self.queues, "capabilities": capabilities, "seen_at": func.now()}
        with transaction() as session:
            statement = insert(Worker).values({"name": self.worker, **values})
            session.execute(statement.on_conflict_do_update(index_elements=[Worker.name], set_=values))

    def add_probed(self, found: Mapping[str, object]) -> None:
        """Include the result of `probe_torch` in the next report."""
        if converter := found.get("converter"):
            self._engines[CONVERTER] = str(converter)
        self._capabilities |= {name: found[name] for name in ("cuda", "cuda_devices", "bf16") if name in found}

    def run(self) -> None:
        while True:
            try:
                self.report()
            except DBAPIError:
                logger.warning("could not report", exc_info=True)
            if self.left.wait(PROBE_AFTER_SECONDS if self._needs_probe else REPORT_SECONDS):
                return
            if self._needs_probe:
                self._needs_probe = False
                self.add_probed(probe_torch())


def installed_engines() -> dict[str, str]:
    """Versions of the installed engines, without importing them."""
    found = {}
    for name in ENGINES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine_capabilities(engines: dict[str, str]) -> dict[str, object]:
    """Describe this machine, without importing torch."""
    gpus = []
    if program := shutil.which("nvidia-smi"):
        query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        try:
            output = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        except (subprocess.SubprocessError, OSError):
            logger.warning("nvidia-smi does not answer", exc_info=True)
            output = ""
        pairs = [line.rsplit(",", 1) for line in output.splitlines() if "," in line]
        gpus = [{"name": name.strip(), "memory_mb": int(size)} for name, size in pairs if size.strip().isdigit()]
    return {
        "flavour": next((flavour for engine, flavour in FLAVOURS.items() if engine in engines), "core"),
        "host": os.uname().nodename,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "gpus": gpus,
        "engines": engines,
        "nodes": get_settings().nodes,
    }


def probe_torch() -> dict[str, object]:
    """What torch can use, from a separate process. Empty if it fails."""
    command = [sys.executable, "-m", MACHINE_MODULE]
    try:
        done = subprocess.run(
            command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True
        )
        found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        logger.warning("could not probe torch", exc_info=True)
        return {}
    return found


async def launcher_status() -> dict[str, str]:
    """How the env host isolates foreign code, and what is wrong with that. Empty while it does not answer."""
    from workers.environments.client import EnvHost  # aiohttp is not needed to start

    settings = get_settings()
    try:
        async with EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value()) as host:
            status = await host.status()
    except RolloutError:
        return {}
    found = {"launcher": status.get("launcher"), "launcher_warning": dict(status.get("probe") or {}).get("warning")}
    return {name: str(value)[:1000] for name, value in found.items() if value}
