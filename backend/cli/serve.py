"""`proctor serve` and `proctor train-api`: a model behind an API, in a separate process that has torch."""

import difflib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
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
TRAINING_MODULE = ("workers.begin", "workers.training.api.server")


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

    def announce(url: str, started: dict[str, Json]) -> None:
        if as_json:
            print_line({"url": f"{url}/v1", "model": started["model"], "context": started["context"]})
        else:
            console().print(f"{started['model']} is served at [bold]{url}/v1[/]. Press Ctrl-C to stop it.")
            say(f"Context length: {started['context']:,} tokens.", "dim")

    with ended_by_signals(), _weights(checkpoint) as (folder, model):
        options = {"folder": str(folder), "name": name or model, "host": host, "port": port, "token": token}
        module = GGUF_MODULE if folder.suffix == ".gguf" else MODULE
        raise typer.Exit(run_in_foreground(module, options, announce))


def train_api(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="A folder of safetensors, a GGUF file, or a model on Hugging Face.")
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free one.", min=0, max=65535)] = 8002,
    host: Annotated[str, typer.Option(help="Address to listen on. Addresses of networks need a token.")] = (
        "127.0.0.1"
    ),
    token: Annotated[
        str, typer.Option(help="API key that clients must send; it begins with tml-. Default: a new one, printed.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the base for clients. Default: the last part of BASE.")] = "",
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for saved weights. Default: a temporary one, deleted at the end.", file_okay=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address and key as a line of JSON.")] = False,
) -> None:
    """Serve the training API until Ctrl-C: clients of Tinker sample, compute gradients, step and save LoRA weights.

    The trainer and its loop stay with you; this machine holds the base and an adapter for each client.
    """
    if host not in LOOPBACK_HOSTS and not token:
        fail(f"{host} can be reached from other machines: set a --token that clients must send")
    if token and not re.fullmatch(r"tml-[\x21-\x7e]{8,200}", token):
        fail("the token must begin with tml-, which clients check, followed by 8 to 200 characters without spaces")
    token = token or f"tml-{secrets.token_urlsafe(24)}"
    local = Path(base).expanduser()
    given = str(local.resolve()) if local.exists() else base
    # clients on this machine read the tokenizer from the folder; others get no paths of it
    tokenizer = given if not local.exists() or (local.is_dir() and host in LOOPBACK_HOSTS) else ""

    def announce(url: str, started: dict[str, Json]) -> None:
        if as_json:
            print_line({"url": url, "token": token, "model": started["model"], "context": started["context"]})
        else:
            console().print(f"The training API of {started['model']} is at [bold]{url}[/]. Press Ctrl-C to stop it.")
            say(f"TINKER_BASE_URL={url} TINKER_API_KEY={token}", "dim")

    options: dict[str, Json] = {
        "base": given,
        "name": name or given.rstrip("/").rpartition("/")[2],
        "host": host,
        "port": port,
        "token": token,
        "tokenizer": tokenizer,
        "folder": str(folder.expanduser().resolve()) if folder else "",
    }
    with ended_by_signals():
        raise typer.Exit(run_in_foreground(TRAINING_MODULE, options, announce))


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


def print_line(value: dict[str, Json]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def run_in_foreground(
    module: tuple[str, ...], options: dict[str, Json], announce: Callable[[str, dict[str, Json]], None]
) -> int:
    """Serve until the child ends. Ctrl-C also reaches the child, which shares the terminal.

    `announce` gets the address and the child's first line as soon as it listens.
    """
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
            host = f"[{options['host']}]" if ":" in str(options["host"]) else options["host"]
            announce(f"http://{host}:{started['port']}", started)
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
