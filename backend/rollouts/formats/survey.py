"""The first look at a whole file: what it holds is known before anything is stored."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.record import Earned, RolloutRecord
from backend.domain.vocabulary import RolloutStatus
from backend.rollouts.formats.reading import OpenedFile
from backend.rollouts.formats.unpacking import BadFile

TIE = 1e-4
_WORD = re.compile(r"[^a-z0-9_]+")


@dataclass
class Survey:
    """Of one file."""

    tool: str = ""
    rollouts: int = 0
    completed: int = 0
    failed: int = 0
    zeros: int = 0
    """Failed rows for which the file says reward 0."""
    is_ours: bool = False
    policies: Counter[str] = field(default_factory=Counter)
    environments: Counter[str] = field(default_factory=Counter)
    hashes: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    tasks: set[tuple[Any, ...]] = field(default_factory=set)
    weights: dict[str, float] = field(default_factory=dict)
    common: set[str] | None = None
    """Reward columns that every completed rollout has."""
    metrics: set[str] | None = None
    """Metrics that every completed rollout has."""
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def count(self, place: str, record: RolloutRecord) -> None:
        self.rollouts += 1
        for seen, value in (
            (self.policies, record.policy),
            (self.environments, record.environment),
            (self.hashes, record.content_hash),
            (self.runs, record.run),
        ):
            if value:
                seen[value] += 1
        task = record.task
        self.tasks.add((task.split, task.index, task.seed) if task else (self.rollouts,))
        if record.status is not RolloutStatus.COMPLETED:
            self.failed += 1
            return
        self.completed += 1
        self._weigh(place, record.rewards)
        names, metrics = set(record.rewards), set(record.metrics)
        self.common = names if self.common is None else self.common & names
        self.metrics = metrics if self.metrics is None else self.metrics & metrics

    def _weigh(self, place: str, rewards: Mapping[str, Earned]) -> None:
        for name, earned in rewards.items():
            known = self.weights.setdefault(name, earned.weight)
            if known != earned.weight:
                raise BadFile(f"{place}: the weight of {name} is {earned.weight:g}, further up it was {known:g}")


def survey(opened: OpenedFile) -> Survey:
    """Read it all. Raises BadFile."""
    found = Survey()
    for place, row in opened.rows():
        _look(found, place, row, opened)
    if not found.rollouts:
        raise BadFile("the file holds no rollouts")
    _hear(found, opened.metadata)
    return found


def _look(found: Survey, place: str, row: Mapping[str, Any], opened: OpenedFile) -> None:
    record, known = opened.read(place, row)
    if not found.rollouts:
        found.tool = known.tool
        found.sampling, model, environment = _first(row)
        found.policies.update([model] * bool(model))
        found.environments.update([environment] * bool(environment))
    elif known.tool != found.tool:
        raise BadFile(f"{place}: {known.tool}, further up it was {found.tool}")
    found.count(place, record)
    found.is_ours = found.is_ours or bool(record.content_hash)
    if record.status is not RolloutStatus.COMPLETED and row.get("reward") == 0:
        found.zeros += 1


def _first(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
    """Sampling, model and environment, as an episode of verifiers 0.4 says them."""
    traces = row.get("traces")
    if not isinstance(traces, list) or not traces or not isinstance(traces[0], Mapping):
        return {}, "", ""
    agent = traces[0].get("agent")
    config = agent.get("config") if isinstance(agent, Mapping) else None
    environment = row.get("env")
    named = str(environment.get("id") or "") if isinstance(environment, Mapping) else ""
    if not isinstance(config, Mapping):
        return {}, "", named
    sampling = config.get("sampling")
    return sampling if isinstance(sampling, Mapping) else {}, str(config.get("model") or ""), named


def _hear(found: Survey, metadata: Mapping[str, Any]) -> None:
    for seen, name in ((found.policies, "model"), (found.environments, "env_id")):
        if isinstance(metadata.get(name), str) and metadata[name] and not seen:
            seen[metadata[name][:300]] += 1
    if isinstance(metadata.get("sampling_args"), Mapping):
        found.sampling = metadata["sampling_args"]


@dataclass(frozen=True, slots=True)
class Columns:
    """The reward columns that an import gets."""

    weights: Mapping[str, float]
    source: str
    """`file`: it names them; `metrics`: those of its metrics that the environment calls so; `reward`: only the sum."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Metric by column."""

    def fit(self, record: RolloutRecord) -> None:
        """Give a completed record exactly these columns; what is over becomes a metric."""
        if record.status is not RolloutStatus.COMPLETED:
            return
        if self.source == "file":
            over = {name: earned.score for name, earned in record.rewards.items() if name not in self.weights}
            record.metrics = {**over, **record.metrics}
            record.rewards = {name: record.rewards[name] for name in self.weights}
        elif self.source == "metrics":
            scores = {name: record.metrics.pop(metric) for name, metric in self.renamed.items()}
            record.rewards = {name: Earned(score=score or 0.0) for name, score in scores.items()}
        else:
            record.rewards = {"reward": Earned(score=record.reward or 0.0)}


def choose_columns(found: Survey, manifest: Manifest) -> Columns:
    declared = {column.name: column.weight for column in manifest.columns}
    if not found.completed:
        return Columns(declared, "file")
    if found.common:
        return Columns({name: weight for name, weight in found.weights.items() if name in found.common}, "file")
    by_name = {column_name(metric): metric for metric in sorted(found.metrics or ())}
    renamed = {name: by_name[name] for name in declared if name in by_name}
    if renamed:
        return Columns({name: declared[name] for name in renamed}, "metrics", renamed)
    return Columns({"reward": 1.0}, "reward")


def column_name(metric: str) -> str:
    """As the adapter of verifiers' packages names the functions of a rubric."""
    name = _WORD.sub("_", metric.lower()).strip("_") or "score"
    name = name if name[0].isalpha() else f"f_{name}"
    return name[:40] if name not in {"reward", "format", "length"} else f"{name}_score"
