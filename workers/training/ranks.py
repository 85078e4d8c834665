"""Several processes for one training run: how they join, exchange values and share a step's rollouts.

Rank 0 leads and the others follow. Only the leader uses the database, decides and stores. Its messages travel as JSON
over gloo on the loopback interface, separately from the trainer's exchange of gradients: a follower may wait for hours
without a collective timing out.
"""

import hashlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from accelerate import PartialState
from pydantic import TypeAdapter
from torch import distributed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from backend.core.embedded import die_with_parent
from backend.domain.rollouts.rollout import Rollout
from workers.rollouts.engine import GroupPlan, TooManyFailures
from workers.training.examples import BrokenStep
from workers.training.hardware import FLOAT32, Hardware
from workers.training.heartbeats import ACTIVITY, LAUNCHER, REPORT_SECONDS, WAITING
from workers.training.sharding import sharded_modules

T = TypeVar("T")
STEP_PATIENCE = timedelta(minutes=30)  # timeout of gradients and everything else that the trainer exchanges
PATIENCE = timedelta(days=7)
"""Timeout of followers while the leader plays held-out evaluations or collects examples. A dead leader is noticed
otherwise."""
WATCH_SECONDS = 0.2
AT_WORK = "ranks/at-work"  # file in the run's folder that exists while the leader is at work

PlayPlans = Callable[[int, Sequence[GroupPlan]], list[Rollout]]  # (training step, plans) → all their rollouts, in order
_PLANS = TypeAdapter(list[GroupPlan])
_ROLLOUTS = TypeAdapter(list[Rollout])


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process of a run. A single process leads without followers. Messages are JSON values of any shape."""

    number: int = 0
    count: int = 1
    group: distributed.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        return self.number == 0

    def scatter(self, values: Sequence[T]) -> T:
        """Leader: send each rank its value, and return the leader's."""
        for number in range(1, self.count):
            self._send(number, values[number])
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Send a value to the leader, which gets the values of all ranks in order. Followers get an empty list."""
        if self.leads:
            return [value, *(self.receive(number) for number in range(1, self.count))]
        self._send(0, value)
        return []

    def decide(self, choose: Callable[[], T]) -> T:
        """Return the leader's decision on every rank. Followers do not call `choose`."""
        if not self.leads:
            return self.receive()  # type: ignore[no-any-return]
        return self.scatter([choose()] * self.count)

    def shares(self, whole: int) -> list[slice]:
        """Split `whole` items among the ranks, in order and as evenly as possible."""
        own, more = divmod(whole, self.count)
        ends = [own * number + min(number, more) for number in range(self.count + 1)]
        return [slice(first, last) for first, last in pairwise(ends)]

    def _send(self, number: int, value: object) -> None:
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        distributed.send(torch.tensor([len(content)]), number, group=self.group)
        distributed.send(content, number, group=self.group)

    def receive(self, number: int = 0) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        with ACTIVITY.during(f"{WAITING} for rank {number}"):
            distributed.recv(size, number, group=self.group)
            content = torch.empty(int(size), dtype=torch.uint8)
            distributed.recv(content, number, group=self.group)
        return json.loads(content.numpy().tobytes())


ALONE = Ranks()


def leader_only(*_: object) -> NoReturn:
    raise AssertionError("only the leader does this")


def _die_with_launcher() -> None:
    """End this process with the launcher, whose kill of a process group does not reach this session."""
    die_with_parent(signal.SIGKILL)
    if str(os.getppid()) != os.environ[LAUNCHER]:  # noqa: TID251 - the launcher ended before it could be watched
        os._exit(1)


def follow_leader(folder: Path) -> None:
    """End this process when the leader leaves, whatever it is doing.

    The leader may leave in the middle of a step with a recorded outcome. Followers would then wait for its gradients.
    """
    _die_with_launcher()
    _give_signs(folder, lambda: os._exit(0))


def _give_signs(folder: Path, leave: Callable[[], None]) -> None:
    """Report from a thread that this rank lives, until the leader leaves."""

    def watch() -> None:
        reported_at = -math.inf
        while (folder / AT_WORK).exists():
            if time.monotonic() - reported_at >= REPORT_SECONDS:
                ACTIVITY.report(int(os.environ["RANK"]), folder)  # noqa: TID251 - set by the launcher
                reported_at = time.monotonic()
            time.sleep(WATCH_SECONDS)
        leave()

    threading.Thread(target=watch, name="sign", daemon=True).start()


@contextmanager
def lead(folder: Path) -> Iterator[None]:
    """Remove the leader's sign from the run's folder at the end, so that its followers leave."""
    if distributed.is_torchelastic_launched():
        _die_with_launcher()
        _give_signs(folder, lambda: None)
    try:
        yield
    finally:
        (folder / AT_WORK).unlink(missing_ok=True)


def join() -> Ranks:
    """Return this process's rank when all have joined. Call it between choosing the device and using it."""
    if not distributed.is_torchelastic_launched():
        return ALONE
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=STEP_PATIENCE)
    group = distributed.new_group(backend="gloo", timeout=PATIENCE)
    return Ranks(state.process_index, state.num_processes, group)


@dataclass(frozen=True, slots=True)
class StageOrder:
    """The leader starts a stage on all ranks. Paths are on this machine, which all ranks share."""

    stage: str  # `sft` or `grpo`
    weights: str  # folder of the starting checkpoint. Other weights of the same shape are taken over from the leader.
    folder: str
    checkpoints_gradients: bool
    micro_batches: int = 1  # of GRPO
    examples: str = ""  # folder of the warm-up's examples; the rest is of the warm-up, too
    steps: int = 0
    seed: int = 0
    save_every: int = 0


@dataclass(slots=True, kw_only=True)
class StageRun:
    """A stage as it runs on one rank."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    seed: int
    folder: Path
    save_every: int
    before_save: Callable[[], None] = lambda: None
    """Called before a trainer state counts as complete, to finish storing its steps."""
    hardware: Hardware = FLOAT32
    ranks: Ranks = ALONE


def play_together(ranks: Ranks, step: int, plans: Sequence[GroupPlan], play: PlayPlans) -> list[Rollout]:
    """Leader: return all rollouts in the order of the plans. Every rank plays whole groups.

    Raises TooManyFailures if too many episodes failed on any rank.
    """
    if ranks.count == 1:
        return play(step, plans)
    parts = [list(plans[share]) for share in ranks.shares(len(plans))]  # whole groups
    ranks.scatter([{"play": _PLANS.dump_python(part, mode="json"), "step": step} for part in parts])
    with ACTIVITY.during(f"playing step {step}"):
        rollouts = play(step, parts[0])
    nothing: dict[str, Any] = {}
    for answer in ranks.gather(nothing)[1:]:
        if "failed" in answer:
            raise TooManyFailures(answer["failed"])
        rollouts += _ROLLOUTS.validate_python(answer["rollouts"])
    return rollouts


def play_for_leader(ranks: Ranks, play: PlayPlans) -> Any:
    """Follower: play what the leader requests until it sends the rows to learn from, and return those."""
    while True:
        message = ranks.receive()
        if "play" not in message:
            return message
        answer: dict[str, object]
        try:
            with ACTIVITY.during(f"playing step {message['step']}"):
                rollouts = play(message["step"], _PLANS.validate_python(message["play"]))
            answer = {"rollouts": _ROLLOUTS.dump_python(rollouts, mode="json")}
        except TooManyFailures as error:
            answer = {"failed": str(error)}
        ranks.gather(answer)


def check_same_weights(ranks: Ranks, model: torch.nn.Module) -> None:
    """Raise BrokenStep on the leader if ranks hold different weights.

    Returns when all ranks are here and have written their part of the trainer's state.
    """
    if ranks.count == 1:
        return
    fingerprints = ranks.gather("" if sharded_modules(model) else fingerprint(model))  # shards differ
    apart = [number for number, each in enumerate(fingerprints) if each != fingerprints[0]]
    if apart:
        raise BrokenStep(f"the weights of rank {apart[0]} differ from those of rank 0")


def fingerprint(model: torch.nn.Module) -> str:
    """Return a digest of the trained weights. Equal weights on equal devices have equal sums."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            digest.update(f"{name} {weight.detach().double().sum().item()!r}\n".encode())
    return digest.hexdigest()
