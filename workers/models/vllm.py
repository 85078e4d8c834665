"""Weights served by vLLM, where a worker has a GPU and the program `vllm`: started here, ended here.

vLLM is a program beside us and never imported: its pins conflict with those of training.
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
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import structlog
import torch

from backend.core.embedded import die_with_parent
from workers.models.load import ModelUnusable
from workers.policies.openai_api import Endpoint

PROGRAM = "vllm"
NAME = "checkpoint"
START_SECONDS = 1800.0
"""Large weights are read and compiled for a while."""
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.2
_TOLD_CHARACTERS = 2000

logger = structlog.get_logger(__name__)


def program() -> str | None:
    """Where `vllm` lies: beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name(PROGRAM)
    return str(beside) if beside.exists() else shutil.which(PROGRAM)


def is_offered() -> bool:
    return torch.cuda.is_available() and program() is not None


@contextmanager
def serving(source: str, *, seconds: float = START_SECONDS) -> Iterator[Endpoint]:
    """The endpoint of a folder's or a Hugging Face model's weights, safetensors only.

    Raises ModelUnusable with the end of vLLM's log when it does not come up.
    """
    started = program()
    if started is None:
        raise ModelUnusable("the program `vllm` is not installed on this worker")
    port, key = _free_port(), secrets.token_urlsafe(24)
    command = [started, "serve", source, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME]
    # Sampling is ours to say, never the model's; weights are never pickles.
    command += ["--generation-config", "vllm", "--load-format", "safetensors"]
    with tempfile.TemporaryFile() as log:
        process = _start(command, {"VLLM_API_KEY": key}, log)
        logger.info("vllm starts", pid=process.pid, port=port)
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}/health", log, time.monotonic() + seconds)
            url = f"http://127.0.0.1:{port}/v1"
            yield Endpoint(url, NAME, key, sends_tools=False, logprobs=True, token_ids=True, is_own=True)
        finally:
            _end(process)


def _start(command: list[str], variables: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, **variables},  # noqa: TID251 - a child's; the key stands in no list of processes
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: IO[bytes], deadline: float) -> None:
    while not _answers(address):
        if process.poll() is not None:
            raise ModelUnusable(f"vLLM ended with {process.returncode} while it started: {_end_of(log)}")
        if time.monotonic() > deadline:
            raise ModelUnusable(f"vLLM was not ready in time: {_end_of(log)}")
        time.sleep(_POLL_SECONDS)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """It and the engine's processes below it, which are a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def _end_of(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(size - _TOLD_CHARACTERS, 0))
    return " ".join(log.read().decode("utf-8", "replace").split()) or "it said nothing"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
