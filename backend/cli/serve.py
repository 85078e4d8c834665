"""`proctor serve`: a checkpoint as an OpenAI-compatible endpoint, in a process of its own that has torch."""

import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import find_checkpoint, is_id, names_of_trained_policies
from backend.cli.output import BAD_RESULT, console, fail, say
from backend.core.embedded import die_with_parent
from backend.settings import PROJECT_ROOT
from proctor import Client

MODULE = ("workers.begin", "workers.models.serve")
END_SECONDS = 10.0
_CONFIGURATION = "config.json"
"""What every folder of weights has."""
_SUGGESTIONS = 3
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def serve(
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="CHECKPOINT", help="A folder of safetensors, a checkpoint's id, or a policy's name."),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8001,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's need a token.")] = (
        "127.0.0.1"
    ),
    token: Annotated[str, typer.Option(help="What clients must send as their API key.")] = "",
    name: Annotated[
        str,
        typer.Option(help="Name of the model for clients. Default: the policy's name, or POLICY@STAGE-STEP for an id."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Say where it listens as a line of JSON.")] = False,
) -> None:
    """Serve a checkpoint to any OpenAI client until Ctrl-C: /v1/models and /v1/chat/completions.

    A policy's name means its best checkpoint, else its newest one, and is the model's name for clients.
    Requests that come together are answered together.
    """
    if host not in LOOPBACK and not token:
        fail(f"{host} can be reached by others: give a --token that clients must send")
    with _ended_by_signals(), _weights(checkpoint) as (folder, known_as):
        asked = {"folder": str(folder), "name": name or known_as, "host": host, "port": port, "token": token}
        raise typer.Exit(_run(asked, as_json=as_json))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Also `kill` ends it in order, and Ctrl-C where a shell that started it in the background ignores that."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _weights(checkpoint: str) -> Iterator[tuple[Path, str]]:
    """The folder to serve and its name. What the running Proctor stores is fetched first."""
    local = Path(checkpoint).expanduser()
    if (local / _CONFIGURATION).is_file() or (os.sep in checkpoint and local.is_dir()):
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
    """Why, and which names are meant instead."""
    if is_id(name):
        return f"there is no checkpoint {name}; `proctor checkpoints list` shows those that are stored"
    for policy in client.pages("/policies"):
        if policy["name"] == name and policy["kind"] != "local":
            return f"the policy {name} is of kind {policy['kind']} and has no weights; only trained policies are served"
        if policy["name"] == name:
            return f"the policy {name} has no stored weights; `proctor checkpoints list` shows those that are stored"
    known = names_of_trained_policies(client)
    near = difflib.get_close_matches(name, known, n=_SUGGESTIONS, cutoff=0.5) or known[:_SUGGESTIONS]
    offer = f"did you mean {', '.join(near)}?" if near else "nothing has been trained yet"
    return f"{name} is no folder of weights, and no checkpoint or trained policy has this name: {offer}"


def _run(asked: dict[str, Any], *, as_json: bool) -> int:
    """Until it ends. Ctrl-C reaches the child by itself: both belong to the terminal's foreground."""
    try:  # also while the child is being started: it then dies with this process
        child = subprocess.Popen(
            [sys.executable, "-m", *MODULE],
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        try:
            _begin(child, asked, as_json=as_json)
            return child.wait()
        finally:
            _end(child)
    except KeyboardInterrupt:
        say("ended")
        return 0


def _begin(child: subprocess.Popen[str], asked: dict[str, Any], *, as_json: bool) -> None:
    """Tell the child what to serve, and a person where."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(asked))
    child.stdin.close()
    line = child.stdout.readline()
    news: dict[str, Any] = json.loads(line) if line.strip() else {"error": "the server ended before it began"}
    if "error" in news:
        fail(str(news["error"]), BAD_RESULT)
    shown = f"[{asked['host']}]" if ":" in asked["host"] else asked["host"]
    url = f"http://{shown}:{news['port']}/v1"
    if as_json:
        sys.stdout.write(json.dumps({"url": url, "model": news["model"], "context": news["context"]}) + "\n")
        sys.stdout.flush()
        return
    console().print(f"{news['model']} is at [bold]{url}[/]  (Ctrl-C ends it)")
    say(f"It reads at most {news['context']:,} tokens.", "dim")


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
