"""`proctor serve`: a checkpoint as an OpenAI-compatible endpoint, in a separate process that has torch."""

import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.connection import connect
from backend.cli.names import SEARCHED, find_checkpoint
from backend.cli.output import BAD_RESULT, console, fail, say
from backend.core.embedded import die_with_parent
from backend.settings import LOOPBACK_HOSTS, PROJECT_ROOT
from backend.supervisor.children import ended_by_signals
from proctor import Client, Json

MODULE = ("workers.begin", "workers.models.serve")
GGUF_MODULE = ("workers.models.serve_gguf",)


def serve(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A folder of safetensors, a GGUF file, a checkpoint's id, or a policy's name."
        ),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free one.", min=0, max=65535)] = 8001,
    host: Annotated[str, typer.Option(help="Address to listen on. Addresses of networks need a token.")] = (
        "127.0.0.1"
    ),
    token: Annotated[str, typer.Option(help="API key that clients must send.")] = "",
    name: Annotated[
        str,
        typer.Option(help="Name of the model for clients. Default: the policy's name, or POLICY@STAGE-STEP for an id."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as a line of JSON.")] = False,
) -> None:
    """Serve a checkpoint to any OpenAI client until Ctrl-C: /v1/models and /v1/chat/completions.

    A policy's name selects its best checkpoint, else its newest one, and is the model's name for clients.
    Concurrent requests are answered in one batch. A GGUF file is served by llama.cpp (the package xllamacpp).
    """
    if host not in LOOPBACK_HOSTS and not token:
        fail(f"{host} can be reached from other machines: set a --token that clients must send")
    with ended_by_signals(), _weights(checkpoint) as (folder, model):
        options = {"folder": str(folder), "name": name or model, "host": host, "port": port, "token": token}
        raise typer.Exit(_run(GGUF_MODULE if folder.suffix == ".gguf" else MODULE, options, as_json=as_json))


@contextmanager
def _weights(checkpoint: str) -> Iterator[tuple[Path, str]]:
    """Yield the folder or GGUF file to serve and its name. A stored checkpoint is downloaded first."""
    local = Path(checkpoint).expanduser()
    if local.suffix == ".gguf":
        if not local.is_file():
            fail(f"there is no file {local}")
        yield local.resolve(), local.stem
        return
    if (local / "config.json").is_file() or (os.sep in checkpoint and local.is_dir()):
        yield local.resolve(), local.resolve().name
        return
    client = connect()
    found = find_checkpoint(client, checkpoint)
    if found is None:
        fail(_nothing_to_serve(client, checkpoint))
    with tempfile.TemporaryDirectory(prefix="proctor-serve-") as folder:
        packed, target = Path(folder) / "weights.zip", Path(folder) / "weights"
        client.download(f"/checkpoints/{found['id']}/weights", packed)
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(target)
        packed.unlink()
        exact = f"{found['policy']}@{found['stage']}-{found['step']}"
        say(f"serving {exact}", "dim", is_error=True)
        yield target, checkpoint if checkpoint == found["policy"] else exact


def _nothing_to_serve(client: Client, name: str) -> str:
    """Explain why there are no weights, and suggest similar names."""
    with suppress(ValueError):
        uuid.UUID(name)
        return f"there is no checkpoint {name}; `proctor checkpoints list` shows stored checkpoints"
    for policy in client.pages("/policies"):
        if policy["name"] == name and policy["kind"] != "local":
            return f"the policy {name} is of kind {policy['kind']} and has no weights; only trained policies are served"
        if policy["name"] == name:
            return f"the policy {name} has no stored weights; `proctor checkpoints list` shows stored checkpoints"
    stored = client.pages("/checkpoints", limit=SEARCHED, has_weights=True)
    known = sorted({each["policy"] for each in stored})
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:3]
    hint = f"did you mean {', '.join(near)}?" if near else "nothing has been trained yet"
    return f"{name} is not a folder of weights, and no checkpoint or trained policy has this name: {hint}"


def _run(module: tuple[str, ...], options: dict[str, Json], *, as_json: bool) -> int:
    """Serve until the child ends. Ctrl-C also reaches the child, which shares the terminal."""
    try:  # also while the child starts: it then dies with this process
        child = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps(options))
            child.stdin.close()
            line = child.stdout.readline()
            started = json.loads(line) if line.strip() else {"error": "the server ended before it started"}
            if "error" in started:
                fail(str(started["error"]), BAD_RESULT)
            host = f"[{options['host']}]" if ":" in options["host"] else options["host"]
            url = f"http://{host}:{started['port']}/v1"
            if as_json:
                address = {"url": url, "model": started["model"], "context": started["context"]}
                sys.stdout.write(json.dumps(address) + "\n")
                sys.stdout.flush()
            else:
                console().print(f"{started['model']} is served at [bold]{url}[/]. Press Ctrl-C to stop it.")
                say(f"Context length: {started['context']:,} tokens.", "dim")
            return child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
            try:
                child.wait(10.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    except KeyboardInterrupt:
        say("stopped")
        return 0
