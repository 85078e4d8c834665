"""Serve weights with vLLM, on workers that have a GPU and the program `vllm`.

vLLM runs as a separate program and is never imported: its pins conflict with those of training.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import torch

from backend.core.embedded import die_with_parent
from workers.models.load import ModelUnusable
from workers.policies.openai_api import Endpoint

PROGRAM = "vllm"
NAME = "checkpoint"
START_SECONDS = 1800.0  # large weights take a while to load and compile
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.2
_LOG_BYTES = 2000

logger = structlog.get_logger(__name__)


def program() -> str | None:
    """Path of `vllm`, next to this interpreter or on the path."""
    adjacent = Path(sys.executable).with_name(PROGRAM)
    return str(adjacent) if adjacent.exists() else shutil.which(PROGRAM)


def is_offered() -> bool:
    return torch.cuda.is_available() and program() is not None


@contextmanager
def serving(source: str, *, seconds: float = START_SECONDS) -> Iterator[Endpoint]:
    """Serve the safetensors weights of a folder or a Hugging Face model and yield the endpoint.

    Raises ModelUnusable with the end of vLLM's log if it does not start.
    """
    executable = program()
    if executable is None:
        raise ModelUnusable("the program `vllm` is not installed on this worker")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    key = secrets.token_urlsafe(24)
    command = [executable, "serve", source, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME]
    # Proctor sets the sampling, never the model's own configuration, and weights are never pickles
    command += ["--generation-config", "vllm", "--load-format", "safetensors"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "VLLM_API_KEY": key},  # noqa: TID251 - for the child; no list of processes shows the key
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        logger.info("starting vllm", pid=process.pid, port=port)
        deadline = time.monotonic() + seconds
        try:
            while True:
                health = f"http://127.0.0.1:{port}/health"
                with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=2) as response:
                    if response.status == 200:
                        break
                if (status := process.poll()) is not None or time.monotonic() > deadline:
                    problem = "was not ready in time" if status is None else f"ended with {status} while it started"
                    log.seek(max(log.seek(0, os.SEEK_END) - _LOG_BYTES, 0))
                    output = " ".join(log.read().decode("utf-8", "replace").split())
                    raise ModelUnusable(f"vLLM {problem}: {output or 'it printed nothing'}")
                time.sleep(_POLL_SECONDS)
            url = f"http://127.0.0.1:{port}/v1"
            yield Endpoint(url, NAME, key, sends_tools=False, logprobs=True, token_ids=True, is_own=True)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):  # also the engine's processes, which share its session
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
