"""verifiers 0.1 to 0.3: `results.jsonl` and `metadata.json` as its `vf-eval -s` writes them.

verifiers stores failures as reward 0.0. They are written here the same way, because its readers expect a number, with
the error next to it. They are read here as failed, without a reward.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import orjson

from backend.domain.results.pass_at_k import pass_at_k, pass_hat_k
from backend.domain.rollouts.conversation import prompt_and_completion, read_messages, to_foreign
from backend.domain.rollouts.record import RolloutRecord
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from backend.rollouts.formats.streams import (
    EXTRAS,
    Record,
    RunFacts,
    entry,
    epoch,
    extras_of,
    find_extras,
    write_lines,
    zip_to,
)

FORMAT_VERSION = "0.3.1"
PASS_THRESHOLD = 0.5
_RESERVED = frozenset(
    f"""{EXTRAS} example_id prompt completion answer info reward error error_chain long_error_chain timing is_completed
    is_truncated stop_condition metrics tool_defs token_usage trajectory""".split()
)
_STOPS: dict[str, str] = {
    StopReason.MAX_TURNS: "max_turns_reached",
    StopReason.TOKEN_LIMIT: "max_total_completion_tokens_reached",
    StopReason.CONTEXT_FULL: "prompt_too_long",
    StopReason.EPISODE_TIMEOUT: "timeout_reached",
}
_STOP_REASONS: dict[str, str] = {text: reason for reason, text in _STOPS.items()} | {
    "timeout": StopReason.EPISODE_TIMEOUT,
}
_KINDS = (
    (ErrorKind.SANDBOX, ("sandbox", "infra", "tunnel")),
    (ErrorKind.POLICY, ("model", "provider", "connection", "prompt")),
    (ErrorKind.JUDGE, ("judge",)),
)
"""Words in the names of verifiers' errors."""


def write(out: IO[bytes], facts: RunFacts, records: Iterable[Record]) -> Iterator[None]:
    """Write a zip with the folder that verifiers would have written.

    Averages cover completed rollouts only. verifiers itself averages failures in as zero.
    """
    totals, sums = defaultdict[str, float](float), defaultdict[str, float](float)
    counts, members, passed = Counter[str](), Counter[int](), Counter[int]()

    def lines() -> Iterator[bytes]:
        for record in records:
            row = row_of(record)
            totals["rows"] += 1
            for name, tokens in row["token_usage"].items():
                totals[name] += tokens
            if row["error"] is None:
                totals["completed"] += 1
                totals["reward"] += row["reward"]
                for name, value in row["metrics"].items():
                    if isinstance(value, int | float) and math.isfinite(value):
                        sums[name] += value
                        counts[name] += 1
                members[row["example_id"]] += 1
                passed[row["example_id"]] += row["reward"] >= PASS_THRESHOLD
            yield orjson.dumps(row)

    with zip_to(out) as archive:
        with entry(archive, "results.jsonl") as file:
            yield from write_lines(file, lines())
        rows, completed = max(totals["rows"], 1), totals["completed"]
        whole = [(count, passed[example]) for example, count in members.items() if count == facts.group_size]
        powers = range(facts.group_size.bit_length() if whole and facts.group_size > 1 else 0)
        estimates = {
            name: {str(2**n): math.fsum(estimate(*each, 2**n) for each in whole) / len(whole) for n in powers}
            for name, estimate in (("pass_at_k", pass_at_k), ("pass_all_k", pass_hat_k))
        }
        metadata = {
            "env_id": facts.environment,
            "env_args": {},
            "model": facts.model,
            "base_url": "",
            "num_examples": facts.tasks,
            "rollouts_per_example": facts.group_size,
            "shuffle": False,
            "shuffle_seed": None,
            "sampling_args": facts.sampling,
            "time": max(epoch(facts.ended_at) - epoch(facts.started_at), 0.0) if facts.ended_at else 0.0,
            "avg_reward": totals["reward"] / completed if completed else 0.0,
            "avg_metrics": {name: total / counts[name] for name, total in sums.items()},
            "avg_error": (totals["rows"] - completed) / rows,
            **estimates,
            "pass_threshold": PASS_THRESHOLD,
            "usage": {name: totals[name] / rows for name in ("input_tokens", "output_tokens")},
            "version_info": {"vf_version": FORMAT_VERSION, "vf_commit": None, "env_version": None, "env_commit": None},
            "state_columns": [EXTRAS],
            "tools": None,
            EXTRAS: {**facts.as_json, "completed": int(completed), "rollouts": int(totals["rows"])},
        }
        with entry(archive, "metadata.json") as file:
            file.write(orjson.dumps(metadata, option=orjson.OPT_INDENT_2))
    yield


def row_of(record: Record) -> Record:
    prompt, completion = prompt_and_completion(record["messages"])
    scores = {name: reward["score"] for name, reward in record.get("rewards", {}).items()}
    metrics = {**record.get("metrics", {}), **scores, "num_turns": float(len(record.get("steps", ())))}
    task, stop = record["task"], record.get("stop_reason")
    model, env = record["policy_seconds"], record["environment_seconds"]
    started = epoch(record.get("started_at"))
    ended = max(epoch(record.get("ended_at")), started + model + env)
    setup, scoring, acting, stepping = (
        {"start": start, "end": start + duration, "duration": duration}
        for start, duration in ((started, 0.0), (ended, 0.0), (started, model), (started + model, env))
    )
    row: Record = {
        "example_id": task["index"],
        "prompt": [to_foreign(message) for message in prompt],
        "completion": [to_foreign(message) for message in completion],
        "info": {"split": task["split"], "level": task["level"], "seed": task["seed"]},
        "reward": record.get("reward"),
        "error": None,
        "timing": {
            "start_time": started,
            "setup": setup,
            "generation": {"start": started, "end": ended, "duration": ended - started},
            "scoring": scoring,
            "model": {"spans": [acting], "duration": model},
            "env": {"spans": [stepping], "duration": env},
            "total": ended - started,
            "overhead": ended - started - model - env,
        },
        "is_completed": True,
        "is_truncated": record["is_truncated"],
        "stop_condition": _STOPS.get(stop or "", stop),
        "metrics": metrics,
        "tool_defs": None,
        "token_usage": {"input_tokens": float(record["tokens_in"]), "output_tokens": float(record["tokens_out"])},
    }
    if record["status"] != RolloutStatus.COMPLETED:
        error = record.get("error") or {"kind": record["status"], "message": f"the rollout was {record['status']}"}
        name = f"{error['kind'].title()}Error"
        message = error["message"] or name
        chain = f"{name}({message!r})"
        row |= {
            "reward": 0.0,
            "error": {"error": name, "message": message, "error_chain_repr": chain, "error_chain_str": name},
            "is_completed": False,
            "stop_condition": "has_error",
            "error_chain": chain,
            "long_error_chain": name,
        }
    flat = {name: value for name, value in metrics.items() if name not in _RESERVED}
    return {**row, **flat, EXTRAS: extras_of(record)}


def read(row: Mapping[str, Any]) -> RolloutRecord:
    """Raises ValueError."""
    messages = [*read_messages(row.get("prompt"), "user"), *read_messages(row["completion"], "assistant")]
    if extras := find_extras(row.get(EXTRAS)):
        return RolloutRecord.model_validate({"messages": messages, "reward": row.get("reward"), **extras})
    error: Record | None = None
    if stored := row.get("error"):
        details = stored if isinstance(stored, Mapping) else {"message": str(stored)}
        chain = str(details.get("error_chain_str") or details.get("error") or "").lower()
        kind = next((kind for kind, words in _KINDS if any(word in chain for word in words)), ErrorKind.ENVIRONMENT)
        error = {"kind": kind, "message": str(details.get("message") or details.get("error") or stored)[:20_000]}
    elif row.get("stop_condition") == "has_error" or not any(each["role"] == "assistant" for each in messages):
        error = {"kind": ErrorKind.POLICY, "message": "the file holds no reply of the model"}
    usage, metrics, timing = row.get("token_usage") or {}, row.get("metrics") or {}, row.get("timing")
    if not isinstance(metrics, Mapping):
        raise ValueError("metrics are not an object")
    seconds = {}
    for name, part in (("policy_seconds", "model"), ("environment_seconds", "env")):
        span = timing.get(part) if isinstance(timing, Mapping) else None
        duration = span.get("duration") if isinstance(span, Mapping) else None
        if isinstance(duration, int | float) and duration >= 0:
            seconds[name] = float(duration)
    return RolloutRecord.model_validate(
        {
            "task": {"index": row["example_id"]},
            "messages": messages,
            "status": RolloutStatus.FAILED if error else RolloutStatus.COMPLETED,
            "error": error,
            "stop_reason": None if error else _STOP_REASONS.get(str(row.get("stop_condition")), StopReason.DONE),
            "reward": row.get("reward"),
            "metrics": {str(name): float(value) for name, value in metrics.items() if isinstance(value, int | float)},
            "tokens_in": int(usage.get("input_tokens") or 0),
            "tokens_out": int(usage.get("output_tokens") or 0),
            "is_truncated": bool(row.get("is_truncated")),
            **seconds,
        }
    )
