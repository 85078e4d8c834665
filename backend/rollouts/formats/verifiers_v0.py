"""verifiers 0.1 to 0.3: `results.jsonl` and `metadata.json` as its `vf-eval -s` writes them.

It stores what failed as reward 0.0. Written here too, because its readers expect a number, with the error beside it;
read here as failed, without any reward.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any

import orjson

from backend.domain.results.pass_at_k import pass_at_k, pass_hat_k
from backend.domain.rollouts.conversation import prompt_and_completion, read_messages, to_other
from backend.domain.rollouts.record import RolloutRecord
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from backend.rollouts.formats.extras import KEY, find_rest, rest_of
from backend.rollouts.formats.facts import RunFacts
from backend.rollouts.formats.streams import Plain, entry, write_lines, zip_to

FORMAT_VERSION = "0.3.1"
PASS_THRESHOLD = 0.5
_RESERVED = frozenset(
    {
        KEY,
        "example_id",
        "prompt",
        "completion",
        "answer",
        "info",
        "reward",
        "error",
        "error_chain",
        "long_error_chain",
        "timing",
        "is_completed",
        "is_truncated",
        "stop_condition",
        "metrics",
        "tool_defs",
        "token_usage",
        "trajectory",
    }
)
_STOPS: dict[str, str] = {
    StopReason.MAX_TURNS: "max_turns_reached",
    StopReason.TOKEN_LIMIT: "max_total_completion_tokens_reached",
    StopReason.EPISODE_TIMEOUT: "timeout_reached",
}
_STOP_REASONS: dict[str, str] = {text: reason for reason, text in _STOPS.items()} | {
    "prompt_too_long": StopReason.TOKEN_LIMIT,
    "timeout": StopReason.EPISODE_TIMEOUT,
}
_KINDS = (
    ("sandbox", ErrorKind.SANDBOX),
    ("infra", ErrorKind.SANDBOX),
    ("tunnel", ErrorKind.SANDBOX),
    ("model", ErrorKind.POLICY),
    ("provider", ErrorKind.POLICY),
    ("connection", ErrorKind.POLICY),
    ("prompt", ErrorKind.POLICY),
    ("judge", ErrorKind.JUDGE),
)


def write(out: IO[bytes], facts: RunFacts, records: Iterable[Plain]) -> Iterator[None]:
    """A zip with the folder that verifiers would have written."""
    figures = _Figures(facts.group_size)
    with zip_to(out) as archive:
        with entry(archive, "results.jsonl") as lines:
            yield from write_lines(lines, (orjson.dumps(figures.count(row_of(record))) for record in records))
        with entry(archive, "metadata.json") as file:
            file.write(orjson.dumps(metadata(facts, figures), option=orjson.OPT_INDENT_2))
    yield


def row_of(record: Plain) -> Plain:
    prompt, completion = prompt_and_completion(record["messages"])
    values = {name: earned["score"] for name, earned in record.get("rewards", {}).items()}
    metrics = {**record.get("metrics", {}), **values, "num_turns": float(len(record.get("steps", ())))}
    task = record["task"]
    error = _error_of(record)
    row: Plain = {
        "example_id": task["index"],
        "prompt": [to_other(message) for message in prompt],
        "completion": [to_other(message) for message in completion],
        "info": {"split": task["split"], "level": task["level"], "seed": task["seed"]},
        "reward": record.get("reward") if error is None else 0.0,
        "error": error,
        "timing": _timing(record),
        "is_completed": error is None,
        "is_truncated": record["is_truncated"],
        "stop_condition": "has_error"
        if error
        else _STOPS.get(record.get("stop_reason", ""), record.get("stop_reason")),
        "metrics": metrics,
        "tool_defs": None,
        "token_usage": {"input_tokens": float(record["tokens_in"]), "output_tokens": float(record["tokens_out"])},
    }
    if error is not None:
        row |= {"error_chain": error["error_chain_repr"], "long_error_chain": error["error_chain_str"]}
    flat = {name: value for name, value in metrics.items() if name not in _RESERVED}
    return {**row, **flat, KEY: rest_of(record)}


def _error_of(record: Plain) -> dict[str, str] | None:
    if record["status"] == RolloutStatus.COMPLETED:
        return None
    error = record.get("error") or {"kind": record["status"], "message": f"the rollout was {record['status']}"}
    name = f"{error['kind'].title()}Error"
    message = error["message"] or name
    return {"error": name, "message": message, "error_chain_repr": f"{name}({message!r})", "error_chain_str": name}


def _timing(record: Plain) -> Plain:
    started = _epoch(record.get("started_at"))
    model, env = record["policy_seconds"], record["environment_seconds"]
    ended = max(_epoch(record.get("ended_at")), started + model + env)
    model_span = {"start": started, "end": started + model, "duration": model}
    env_span = {"start": started + model, "end": started + model + env, "duration": env}
    return {
        "start_time": started,
        "setup": {"start": started, "end": started, "duration": 0.0},
        "generation": {"start": started, "end": ended, "duration": ended - started},
        "scoring": {"start": ended, "end": ended, "duration": 0.0},
        "model": {"spans": [model_span], "duration": model},
        "env": {"spans": [env_span], "duration": env},
        "total": ended - started,
        "overhead": ended - started - model - env,
    }


def _epoch(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


@dataclass
class _Figures:
    """Averages over what was completed. verifiers itself averages failures in as zero."""

    group_size: int
    rows: int = 0
    failed: int = 0
    reward: float = 0.0
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0]))
    tokens: list[float] = field(default_factory=lambda: [0.0, 0.0])
    good: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """Members and good ones by example."""

    def count(self, row: Plain) -> Plain:
        self.rows += 1
        usage = row["token_usage"]
        self.tokens = [self.tokens[0] + usage["input_tokens"], self.tokens[1] + usage["output_tokens"]]
        if row["error"] is not None:
            self.failed += 1
            return row
        self.reward += row["reward"]
        for name, value in row["metrics"].items():
            if isinstance(value, int | float) and math.isfinite(value):
                self.metrics[name][0] += value
                self.metrics[name][1] += 1
        members = self.good[row["example_id"]]
        members[0] += 1
        members[1] += row["reward"] >= PASS_THRESHOLD
        return row

    @property
    def completed(self) -> int:
        return self.rows - self.failed

    def passes(self, estimate: Any) -> dict[str, float]:
        """By k = 1, 2, 4, …, over examples with all their rollouts."""
        whole = [(members, good) for members, good in self.good.values() if members == self.group_size]
        found, k = {}, 1
        while whole and self.group_size > 1 and k <= self.group_size:
            found[str(k)] = math.fsum(estimate(members, good, k) for members, good in whole) / len(whole)
            k *= 2
        return found


def metadata(facts: RunFacts, figures: _Figures) -> Plain:
    rows = max(figures.rows, 1)
    return {
        "env_id": facts.environment,
        "env_args": {},
        "model": facts.model,
        "base_url": "",
        "num_examples": facts.tasks,
        "rollouts_per_example": facts.group_size,
        "shuffle": False,
        "shuffle_seed": None,
        "sampling_args": facts.sampling,
        "time": max(_epoch(facts.ended_at) - _epoch(facts.started_at), 0.0) if facts.ended_at else 0.0,
        "avg_reward": figures.reward / figures.completed if figures.completed else 0.0,
        "avg_metrics": {name: total / count for name, (total, count) in figures.metrics.items()},
        "avg_error": figures.failed / rows,
        "pass_at_k": figures.passes(pass_at_k),
        "pass_all_k": figures.passes(pass_hat_k),
        "pass_threshold": PASS_THRESHOLD,
        "usage": {"input_tokens": figures.tokens[0] / rows, "output_tokens": figures.tokens[1] / rows},
        "version_info": {"vf_version": FORMAT_VERSION, "vf_commit": None, "env_version": None, "env_commit": None},
        "state_columns": [KEY],
        "tools": None,
        KEY: {**facts.as_json, "completed": figures.completed, "rollouts": figures.rows},
    }


def is_row(row: Mapping[str, Any]) -> bool:
    return "example_id" in row and "completion" in row


def read(row: Mapping[str, Any]) -> RolloutRecord:
    """Raises ValueError."""
    messages = [*read_messages(row.get("prompt"), "user"), *read_messages(row["completion"], "assistant")]
    if rest := find_rest(row.get(KEY)):
        return RolloutRecord.model_validate({"messages": messages, "reward": row.get("reward"), **rest})
    error = _read_error(row, has_reply=any(message["role"] == "assistant" for message in messages))
    usage = row.get("token_usage") or {}
    return RolloutRecord.model_validate(
        {
            "task": {"index": row["example_id"]},
            "messages": messages,
            "status": RolloutStatus.FAILED if error else RolloutStatus.COMPLETED,
            "error": error,
            "stop_reason": None if error else _STOP_REASONS.get(str(row.get("stop_condition")), StopReason.DONE),
            "reward": row.get("reward"),
            "metrics": _numbers(row.get("metrics") or {}),
            "tokens_in": int(usage.get("input_tokens") or 0),
            "tokens_out": int(usage.get("output_tokens") or 0),
            "is_truncated": bool(row.get("is_truncated")),
            **_read_timing(row.get("timing")),
        }
    )


def _read_error(row: Mapping[str, Any], *, has_reply: bool) -> Plain | None:
    """What failed, in its own words. A rollout in which the model said nothing was not played either."""
    error = row.get("error")
    if error:
        told = error if isinstance(error, Mapping) else {"message": str(error)}
        chain = str(told.get("error_chain_str") or told.get("error") or "").lower()
        kind = next((kind for word, kind in _KINDS if word in chain), ErrorKind.ENVIRONMENT)
        return {"kind": kind, "message": str(told.get("message") or told.get("error") or error)[:20_000]}
    if row.get("stop_condition") == "has_error" or not has_reply:
        return {"kind": ErrorKind.POLICY, "message": "the file holds no reply of the model"}
    return None


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise ValueError("metrics are no object")
    return {str(name): float(value) for name, value in values.items() if isinstance(value, int | float)}


def _read_timing(timing: Any) -> Plain:
    if not isinstance(timing, Mapping):
        return {}
    found = {}
    for name, span in (("policy_seconds", "model"), ("environment_seconds", "env")):
        seconds = (timing.get(span) or {}).get("duration") if isinstance(timing.get(span), Mapping) else None
        if isinstance(seconds, int | float) and seconds >= 0:
            found[name] = float(seconds)
    return found
