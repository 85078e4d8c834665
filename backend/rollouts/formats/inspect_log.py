"""An Inspect log (`.eval`): a zip with a JSON file a sample, their summaries and a header. Only written, never read."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import fsum, sqrt
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import orjson

from backend.domain.rollouts.conversation import prompt_and_completion
from backend.domain.vocabulary import RolloutStatus, StopReason
from backend.rollouts.formats.extras import rest_of
from backend.rollouts.formats.facts import RunFacts
from backend.rollouts.formats.streams import Plain, entry, zip_to

LOG_VERSION = 2
_SPOOL = 4 * 1024 * 1024
_LIMITS: dict[str, str] = {
    StopReason.TOKEN_LIMIT: "token",
    StopReason.MAX_TURNS: "message",
    StopReason.EPISODE_TIMEOUT: "time",
}
_FINISH_EVERY = 64


def write(out: IO[bytes], facts: RunFacts, records: Iterable[Plain]) -> Iterator[None]:
    scores = _Scores()
    with zip_to(out) as archive, SpooledTemporaryFile(_SPOOL) as summaries:
        with entry(archive, "_journal/start.json") as file:
            file.write(orjson.dumps({"version": LOG_VERSION, "eval": _spec(facts), "plan": _plan(facts)}))
        for number, record in enumerate(records):
            sample = sample_of(record, facts)
            with entry(archive, f"samples/{sample['id']}_epoch_{sample['epoch']}.json") as file:
                file.write(orjson.dumps(sample))
            summaries.write((b"[" if number == 0 else b",") + orjson.dumps(_summary(sample)))
            scores.count(record)
            if number % _FINISH_EVERY == 0:
                yield
        summaries.write(b"]" if scores.rows else b"[]")
        with entry(archive, "summaries.json") as file:
            summaries.seek(0)
            while part := summaries.read(1 << 20):
                file.write(part)
                yield
        with entry(archive, "header.json") as file:
            file.write(orjson.dumps(_header(facts, scores)))
    yield


def sample_of(record: Plain, facts: RunFacts) -> Plain:
    """A rollout as a sample: its task is the id, its place in the group the epoch."""
    task = record["task"]
    prompt, _ = prompt_and_completion(record["messages"])
    replies = [message for message in record["messages"] if message["role"] == "assistant"]
    usage = _usage(record)
    sample: Plain = {
        "id": f"{task['split']}-{task['index']}-{task['seed']}-{record['group']}",
        "epoch": record["member"] + 1,
        "input": [_message(message, facts) for message in prompt],
        "target": "",
        "messages": [_message(message, facts) for message in record["messages"]],
        "output": _output(replies, record, facts, usage),
        "scores": _sample_scores(record),
        "metadata": {"level": task["level"], "proctor": rest_of({**record, "messages": []})},
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
    return sample | _trouble(record)


def _trouble(record: Plain) -> Plain:
    """What failed or ran out; a failed sample has an error and no score."""
    if record["status"] != RolloutStatus.COMPLETED:
        error = record.get("error")
        message = f"{error['kind']}: {error['message']}" if error else str(record["status"])
        return {"error": {"message": message, "traceback": message, "traceback_ansi": message}}
    if limit := _LIMITS.get(record.get("stop_reason", "")):
        return {"limit": {"type": limit, "limit": 0}}
    return {}


def _message(message: Plain, facts: RunFacts) -> Plain:
    role = message["role"] if message["role"] in {"system", "user", "assistant", "tool"} else "user"
    content: Any = message["content"]
    if role != "assistant":
        return {"role": role, "content": content}
    if message.get("reasoning"):
        content = [
            {"type": "reasoning", "reasoning": message["reasoning"]},
            {"type": "text", "text": message["content"]},
        ]
    return {"role": role, "content": content, "source": "generate", "model": facts.model}


def _output(replies: list[Plain], record: Plain, facts: RunFacts, usage: Plain) -> Plain:
    if not replies:
        return {"model": facts.model, "choices": [], "completion": ""}
    reason = "max_tokens" if record["is_truncated"] else "stop"
    choice = {"message": _message(replies[-1], facts), "stop_reason": reason}
    return {"model": facts.model, "choices": [choice], "completion": replies[-1]["content"], "usage": usage}


def _usage(record: Plain) -> Plain:
    read, written = record["tokens_in"], record["tokens_out"]
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return usage | ({"total_cost": record["cost"]} if record.get("cost") is not None else {})


def _sample_scores(record: Plain) -> Plain:
    if record["status"] != RolloutStatus.COMPLETED:
        return {}
    replies = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
    scores: Plain = {"reward": {"value": record["reward"], "answer": replies[-1] if replies else ""}}
    for name, earned in record.get("rewards", {}).items():
        scores.setdefault(name, {"value": earned["score"], "metadata": {"weight": earned["weight"]}})
    return scores


def _summary(sample: Plain) -> Plain:
    kept = ("id", "epoch", "input", "target", "scores", "model_usage", "started_at", "completed_at", "total_time")
    summary = {name: sample[name] for name in kept if name in sample}
    summary["input"] = summary["input"][-1:]
    error = {"error": sample["error"]["message"]} if "error" in sample else {}
    limit = {"limit": sample["limit"]["type"]} if "limit" in sample else {}
    return {
        **summary,
        "metadata": {"level": sample["metadata"]["level"]},
        "working_time": sample["working_time"],
        "uuid": sample["uuid"],
        "completed": True,
        "message_count": len(sample["messages"]),
        **error,
        **limit,
    }


class _Scores:
    """Mean and standard error of each score, over what was completed."""

    def __init__(self) -> None:
        self.rows = 0
        self.completed = 0
        self.tokens = [0, 0]
        self.values: dict[str, list[float]] = defaultdict(list)

    def count(self, record: Plain) -> None:
        self.rows += 1
        self.tokens = [self.tokens[0] + record["tokens_in"], self.tokens[1] + record["tokens_out"]]
        if record["status"] == RolloutStatus.COMPLETED:
            self.completed += 1
            for name, score in _sample_scores(record).items():
                self.values[name].append(score["value"])

    def as_json(self) -> list[Plain]:
        return [_score(name, values, self.rows - self.completed) for name, values in self.values.items()]


def _score(name: str, values: list[float], unscored: int) -> Plain:
    count = len(values)
    mean = fsum(values) / count
    error = sqrt(fsum((value - mean) ** 2 for value in values) / (count - 1) / count) if count > 1 else 0.0
    metrics = {key: {"name": key, "value": value, "params": {}} for key, value in (("mean", mean), ("stderr", error))}
    counts = {"scored_samples": count, "unscored_samples": unscored}
    return {"name": name, "scorer": name, "params": {}, "metrics": metrics, **counts}


def _spec(facts: RunFacts) -> Plain:
    limits = {"temperature": facts.sampling.get("temperature"), "top_p": facts.sampling.get("top_p")}
    config = {name: value for name, value in limits.items() if value is not None}
    if facts.sampling.get("max_tokens"):
        config["max_tokens"] = facts.sampling["max_tokens"]
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


def _plan(facts: RunFacts) -> Plain:
    return {"name": "plan", "steps": [{"solver": "proctor", "params": {"policy": facts.policy}}], "config": {}}


def _header(facts: RunFacts, scores: _Scores) -> Plain:
    read, written = scores.tokens
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return {
        "version": LOG_VERSION,
        "status": "success",
        "eval": _spec(facts),
        "plan": _plan(facts),
        "results": {"total_samples": scores.rows, "completed_samples": scores.completed, "scores": scores.as_json()},
        "stats": {
            "started_at": facts.started_at,
            "completed_at": facts.ended_at,
            "model_usage": {facts.model: usage},
        },
    }
