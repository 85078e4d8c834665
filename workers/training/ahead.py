"""Sampling ahead of learning: while a step learns, the episodes of later steps are sampled. Nothing here uses TRL.

With `grpo.staleness` n, the batch of step s is sampled by the policy after step max(0, s − 1 − n), never by another
one. Its staleness, the number of steps between sampling and learning, is therefore at most n and no batch is ever too
old to be learned from. On a CPU the same run samples the same episodes every time, however fast each side is. Batches
are ordered by their age as in AReaL (arXiv 2505.24298) instead of discarded; n = 1 is the lag of Asynchronous RLHF
(arXiv 2410.18252).
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.grpo import GrpoChoice
from workers.rollouts.engine import GroupPlan
from workers.training.checkpoints import replace_file
from workers.training.examples import BrokenStep

POLICY_VERSION = "policy_version"
"""Metric of a rollout that was sampled ahead: the training step after which its policy was taken."""
PENDING = "ahead.json"  # file in a trainer's state: the batches that were ordered and not learned from yet
WEIGHTS = "ahead-{}.safetensors"  # trained weights after a step: in the stage's folder, and in states that need them


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The batch of one step, to sample."""

    step: int
    version: int  # the policy after this step samples it
    temperature: float
    plans: list[GroupPlan]


_ORDERS = TypeAdapter(list[SampleOrder])
PlayOrder = Callable[[SampleOrder, Path], list[Rollout]]
"""(order, file with its weights) → all rollouts in the order of the plans. Called in a thread, one call at a time."""


@dataclass(slots=True)
class _Batch:
    order: SampleOrder
    rollouts: Future[list[Rollout]]
    began: float = math.inf
    ended: float = math.inf


@dataclass(slots=True, kw_only=True)
class SampleAhead(AbstractContextManager["SampleAhead"]):
    """Orders batches ahead of the step that learns, and hands them over in order."""

    choice: GrpoChoice
    folder: Path
    plan: Callable[[int], list[GroupPlan]]
    play: PlayOrder
    _batches: dict[int, _Batch] = field(default_factory=dict)
    """Batches that were ordered and not handed over yet, by step."""
    _recent: list[_Batch] = field(default_factory=list)
    """Batches that may have been sampled during the current step."""
    _learning_since: float = 0.0
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="ahead"))

    def order(self, step: int, model: PreTrainedModel, temperature_of: Callable[[int], float]) -> float:
        """Before `step` learns: order the batches up to `staleness` steps ahead from the current weights.

        Returns the temperature at which the batch of `step` was sampled.
        """
        last = min(step + self.choice.staleness, self.choice.steps)
        missing = [each for each in range(step, last + 1) if each not in self._batches]
        if missing:
            save_trained(model, self._weights_of(step - 1))
        for each in missing:
            self._submit(SampleOrder(each, step - 1, temperature_of(each), self.plan(each)))
        return self._batches[step].order.temperature

    def take(self, step: int) -> list[Rollout]:
        """Wait for the batch of a step, whose rollouts carry the version of their policy."""
        batch = self._batches.pop(step)
        rollouts = batch.rollouts.result()
        staleness = step - 1 - batch.order.version
        if not 0 <= staleness <= self.choice.staleness:
            raise BrokenStep(
                f"step {step}: episodes are {staleness} steps old, at most {self.choice.staleness} allowed"
            )
        for rollout in rollouts:
            rollout.metrics[POLICY_VERSION] = float(batch.order.version)
        needed = {each.order.version for each in self._batches.values()}
        if batch.order.version not in needed:
            self._weights_of(batch.order.version).unlink(missing_ok=True)
        self._learning_since = time.monotonic()
        self._recent = [batch, *(each for each in self._recent if each.ended > self._learning_since)]
        return rollouts

    def figures(self) -> dict[str, float]:
        """Return the curves of the step that has just learned. Its batch is the first of the recent ones."""
        now, since, taken = time.monotonic(), self._learning_since, self._recent[0]
        sampled = sum(max(0.0, min(each.ended, now) - max(each.began, since)) for each in self._recent)
        return {
            "staleness": float(taken.order.step - 1 - taken.order.version),
            "ahead/overlap": sampled / (now - since) if now > since else 0.0,
            "ahead/seconds": taken.ended - taken.began,
            "ahead/tokens_per_second": sum(each.tokens_out for each in taken.rollouts.result())
            / max(taken.ended - taken.began, 1e-9),
        }

    def save(self, state: Path) -> None:
        """Keep the waiting orders with a trainer's state, to sample the same batches again."""
        orders = [batch.order for _, batch in sorted(self._batches.items())]
        for version in {order.version for order in orders}:
            _link(self._weights_of(version), state / WEIGHTS.format(version))
        replace_file(state / PENDING, json.dumps(_ORDERS.dump_python(orders, mode="json")))

    def restore(self, state: Path) -> None:
        """Order the batches again that a trainer's state waited for. A state without them starts afresh."""
        if not (state / PENDING).exists():
            return
        for order in _ORDERS.validate_json((state / PENDING).read_bytes()):
            _link(state / WEIGHTS.format(order.version), self._weights_of(order.version))
            self._submit(order)

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _submit(self, order: SampleOrder) -> None:
        batch = _Batch(order, Future())
        weights = self._weights_of(order.version)

        def sample() -> list[Rollout]:
            batch.began = time.monotonic()
            try:
                return self.play(order, weights)
            finally:
                batch.ended = time.monotonic()

        batch.rollouts = self._thread.submit(sample)
        self._batches[order.step] = batch
        self._recent.append(batch)

    def _weights_of(self, version: int) -> Path:
        return self.folder / WEIGHTS.format(version)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def save_trained(model: PreTrainedModel, path: Path) -> None:
    """Write the trained weights. Readers never see a file half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    save_file({name: weight.detach().to("cpu", copy=True).contiguous() for name, weight in trained.items()}, partial)
    partial.replace(path)


def load_trained(model: PreTrainedModel, path: Path) -> None:
    """Replace the trained weights of a model that was loaded from the same folder as the saved one."""
    weights = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])


def truncated_weights(
    logps_BT: torch.Tensor, sampling_logps_BT: torch.Tensor, mask_BT: torch.Tensor, limit: float
) -> torch.Tensor:
    """Return min(π(t) / μ(t), limit) for each token of the policy, and 1 for all others, without gradient.

    π is the policy before the update and μ the sampling policy. Truncated importance sampling: IMPALA (arXiv
    1802.01561), for language models AReaL's decoupled objective (arXiv 2505.24298) and TRL's `token_truncate`.
    """
    ratio_BT = (logps_BT.detach() - sampling_logps_BT).exp().clamp(max=limit)
    return torch.where(mask_BT.bool(), ratio_BT, torch.ones_like(ratio_BT))
