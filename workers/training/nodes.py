"""Several machines train one run: node 0 calls the others when a run starts, and they join.

The nodes share the data folder. A call is a file in it, and so is each node's answer: a node that sees another folder,
or has not started, is missing before any training process waits for it.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from backend.settings import Settings

POLL_SECONDS = 0.2
JOIN_SECONDS = 600.0
"""Time that a run waits for all nodes at its start."""


class NodesMissing(Exception):
    """Not all nodes joined in time."""


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One attempt at a run. A resumed run calls again."""

    id: str
    run: str
    nodes: int


def call_file(settings: Settings) -> Path:
    """The file of a group's current call. Groups differ in the address of their node 0."""
    return settings.data / "nodes" / settings.nodes_address.translate(str.maketrans(":[]", "___")) / "call.json"


def read_call(settings: Settings) -> NodeCall | None:
    try:
        return NodeCall(**json.loads(call_file(settings).read_text()))
    except FileNotFoundError:
        return None


def answer(settings: Settings, call: NodeCall) -> None:
    """Say that this node joins."""
    path = _answer_file(settings, call, settings.node_rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _answer_file(settings: Settings, call: NodeCall, rank: int) -> Path:
    return call_file(settings).parent / call.id / str(rank)


@contextmanager
def gathered(
    settings: Settings,
    run_id: uuid.UUID,
    nodes: int,
    report: Callable[[list[int]], bool],
    wait_seconds: float = JOIN_SECONDS,
) -> Iterator[bool]:
    """Call the other nodes of the group for a run, and wait until they have joined. They leave at the end.

    `report` gets the missing nodes from time to time, and returns whether to keep waiting; if not, the result is False.
    Raises NodesMissing.
    """
    call, path = NodeCall(uuid.uuid4().hex, str(run_id), nodes), call_file(settings)
    folder = path.parent / call.id
    folder.mkdir(parents=True)
    partial = path.with_name("call.partial")
    partial.write_text(json.dumps(asdict(call)))
    partial.replace(path)
    deadline = time.monotonic() + wait_seconds
    try:
        while missing := [rank for rank in range(1, nodes) if not _answer_file(settings, call, rank).exists()]:
            if not report(missing):
                break
            if time.monotonic() > deadline:
                names = ", ".join(map(str, missing))
                raise NodesMissing(
                    f"Node {names} of {nodes} did not join within {wait_seconds:g} seconds. Check that "
                    f"`python -m workers.training.node` runs there, with the same data folder, the same "
                    f"PROCTOR_NODES_ADDRESS ({settings.nodes_address}) and its own PROCTOR_NODE_RANK."
                )
            time.sleep(POLL_SECONDS)
        yield not missing
    finally:
        current = read_call(settings)
        if current is not None and current.id == call.id:
            path.unlink(missing_ok=True)
        for given in folder.iterdir():
            given.unlink(missing_ok=True)
        folder.rmdir()
