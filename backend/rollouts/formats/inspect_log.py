"""Inspect logs (`.eval`): a zip with a JSON file per sample, their summaries and a header. Only written, never read."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import fsum, sqrt
from tempfile import SpooledTemporaryFile
from typing import IO

import orjson

from backend.domain.rollouts.conversation import prompt_and_completion
from backend.domain.vocabulary import RolloutStatus, StopReason
from backend.rollouts.formats.streams import Record, RunFacts, entry, extras_of, zip_to

LOG_VERSION = 2
_LIMITS: dict[str, str] = {
    StopReason.TOKEN_LIMIT: "token",
    StopReason.CONTEXT_FULL: "context",
    StopReason.MAX_TURNS: "message",
    StopReason.EPISODE_TIMEOUT: "time",
}
_SUMMARIZED = (
    *("id", "epoch", "target", "scores", "model_usage", "started_at", "completed_at", "total_time"),
    *("working_time", "uuid"),
)


def write(out: IO[bytes], facts: RunFacts, records: Iterable[Record]) -> Iterator[None]:
    spec = _spec(facts)
    rows = completed = read = written = 0
    values: defaultdict[str, list[float]] = defaultdict(list)
    with zip_to(out) as archive, SpooledTemporaryFile(4 << 20) as summaries:
        with entry(archive, "_journal/start.json") as file:
            steps = [{"solver": "proctor", "params": {"policy": facts.policy}}]
            plan = {"name": "plan", "steps": steps, "config": {}}
            file.write(orjson.dumps({"version": LOG_VERSION, "eval": spec, "plan": plan}))
        for record in records:
            sample = sample_of(record, facts)
            with entry(archive, f"samples/{sample['id']}_epoch_{sample['epoch']}.json") as file:
                file.write(orjson.dumps(sample))
            summary = {
                **{name: sample[name] for name in _SUMMARIZED if name in sample},
                "input": sample["input"][-1:],
                "metadata": {"level": sample["metadata"]["level"]},
                "completed": True,
                "message_count": len(sample["messages"]),
                **({"error": sample["error"]["message"]} if "error" in sample else {}),
                **({"limit": sample["limit"]["type"]} if "limit" in sample else {}),
            }
            summaries.write((b"," if rows else b"[") + orjson.dumps(summary))
            read, written = read + record["tokens_in"], written + record["tokens_out"]
            completed += record["status"] == RolloutStatus.COMPLETED
            for name, score in sample["scores"].items():
                values[name].append(score["value"])
            if rows % 64 == 0:
                yield
            rows += 1
        summaries.write(b"]" if rows else b"[]")
        with entry(archive, "summaries.json") as file:
            summaries.seek(0)
            while part := summaries.read(1 << 20):
                file.write(part)
                yield
        scores = []
        for name, own in values.items():  # mean and standard error of each score over completed samples
            count, mean = len(own), fsum(own) / len(own)
            error = sqrt(fsum((value - mean) ** 2 for value in own) / (count - 1) / count) if count > 1 else 0.0
            named = (("mean", mean), ("stderr", error))
            metrics = {key: {"name": key, "value": value, "params": {}} for key, value in named}
            counts = {"scored_samples": count, "unscored_samples": rows - completed}
            scores.append({"name": name, "scorer": name, "params": {}, "metrics": metrics, **counts})
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        header = {
            "version": LOG_VERSION,
            "status": "success",
            "eval": spec,
            "plan": plan,
            "results": {"total_samples": rows, "completed_samples": completed, "scores": scores},
            "stats": {
                "started_at": facts.started_at,
                "completed_at": facts.ended_at,
                "model_usage": {facts.model: usage},
            },
        }
        with entry(archive, "header.json") as file:
            file.write(orjson.dumps(header))
    yield


def sample_of(record: Record, facts: RunFacts) -> Record:
    """A rollout as a sample. Its task is the id, its index within the group the epoch."""
    task, is_completed = record["task"], record["status"] == RolloutStatus.COMPLETED
    prompt, _ = prompt_and_completion(record["messages"])
    replies = [message for message in record["messages"] if message["role"] == "assistant"]
    read, written = record["tokens_in"], record["tokens_out"]
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    if record.get("cost") is not None:
        usage["total_cost"] = record["cost"]

    output: Record = {"model": facts.model, "choices": [], "completion": ""}
    if replies:
        reason = "max_tokens" if record["is_truncated"] else "stop"
        choice = {"message": _message(replies[-1], facts), "stop_reason": reason}
        output = {"model": facts.model, "choices": [choice], "completion": replies[-1]["content"], "usage": usage}
    scores: Record = {}
    if is_completed:
        scores["reward"] = {"value": record["reward"], "answer": replies[-1]["content"] if replies else ""}
        for name, reward in record.get("rewards", {}).items():
            scores.setdefault(name, {"value": reward["score"], "metadata": {"weight": reward["weight"]}})

    sample: Record = {
        "id": f"{task['split']}-{task['index']}-{task['seed']}-{record['group']}",
        "epoch": record["member"] + 1,
        "input": [_message(message, facts) for message in prompt],
        "target": "",
        "messages": [_message(message, facts) for message in record["messages"]],
        "output": output,
        "scores": scores,
        "metadata": {"level": task["level"], "proctor": extras_of({**record, "messages": []})},
        "store": {},
        "events": [],
        "model_usage": {facts.model: usage},
        "uuid": record["id"],
        "total_time": record["queue_seconds"] + record["policy_seconds"] + record["environment_seconds"],
        "working_time": record["policy_seconds"] + record["environment_seconds"],
        "error_retries": [],
        "attachments": {},
    }
    for name, moment in (("started_at", "started_at"), ("completed_at", "ended_at")):
        if record.get(moment):
            sample[name] = record[moment]
    if not is_completed:
        error = record.get("error")
        message = f"{error['kind']}: {error['message']}" if error else str(record["status"])
        sample["error"] = {"message": message, "traceback": message, "traceback_ansi": message}
    elif limit := _LIMITS.get(record.get("stop_reason", "")):
        sample["limit"] = {"type": limit, "limit": 0}
    return sample


def _message(message: Record, facts: RunFacts) -> Record:
    role = message["role"] if message["role"] in {"system", "user", "assistant", "tool"} else "user"
    if role != "assistant":
        return {"role": role, "content": message["content"]}
    content: object = message["content"]
    if message.get("reasoning"):
        content = [
            {"type": "reasoning", "reasoning": message["reasoning"]},
            {"type": "text", "text": message["content"]},
        ]
    return {"role": role, "content": content, "source": "generate", "model": facts.model}


def _spec(facts: RunFacts) -> Record:
    sampling = {name: facts.sampling.get(name) for name in ("temperature", "top_p", "max_tokens")}
    config = {name: value for name, value in sampling.items() if value or (value is not None and name != "max_tokens")}
    return {
        "eval_id": facts.id,
        "run_id": facts.id,
        "created": facts.created_at,
        "task": facts.environment,
        "task_id": facts.id,
        "task_version": facts.version,
        "task_attribs": {},
        "task_args": {},
        "dataset": {"name": facts.environment, "samples": facts.tasks, "shuffled": False},
        "model": facts.model,
        "model_generate_config": config,
        "model_args": {},
        "config": {"epochs": facts.group_size},
        "packages": {"proctor": facts.proctor},
        "metadata": facts.as_json,
        "scorers": [{"name": name} for name in ("reward", *facts.columns)],
    }
