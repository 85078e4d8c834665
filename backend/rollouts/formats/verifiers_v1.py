"""verifiers 0.4: `traces.jsonl`, an episode a line with one trace, whose conversation is a chain of nodes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Any

import orjson

from backend.domain.rollouts.conversation import read_message, to_other
from backend.domain.rollouts.record import RolloutRecord
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from backend.rollouts.formats.extras import KEY, find_rest, rest_of
from backend.rollouts.formats.facts import RunFacts
from backend.rollouts.formats.streams import Plain, write_lines

FORMAT_VERSION = "0.4.0"
_KINDS = {
    ErrorKind.POLICY: "ProviderError",
    ErrorKind.ENVIRONMENT: "EnvError",
    ErrorKind.SANDBOX: "SandboxError",
    ErrorKind.JUDGE: "TaskError",
    ErrorKind.LIMIT: "TaskError",
}
_ERROR_KINDS = {
    "ProviderError": ErrorKind.POLICY,
    "InterceptionError": ErrorKind.POLICY,
    "SandboxError": ErrorKind.SANDBOX,
    "TunnelError": ErrorKind.SANDBOX,
}
_STOPS: dict[str, str] = {
    StopReason.DONE: "agent_completed",
    StopReason.MAX_TURNS: "max_turns",
    StopReason.TOKEN_LIMIT: "max_total_tokens",
    StopReason.EPISODE_TIMEOUT: "agent_timeout",
}
_STOP_REASONS: dict[str, str] = {text: reason for reason, text in _STOPS.items()} | {
    "max_input_tokens": StopReason.TOKEN_LIMIT,
    "max_output_tokens": StopReason.TOKEN_LIMIT,
    "rollout_timeout": StopReason.EPISODE_TIMEOUT,
}
_TASK = "ProctorTask"


def write(out: IO[bytes], facts: RunFacts, records: Iterable[Plain]) -> Iterator[None]:
    yield from write_lines(out, (orjson.dumps(episode_of(record, facts)) for record in records))


def episode_of(record: Plain, facts: RunFacts) -> Plain:
    place = record["task"]
    key = f"{record['content_hash']}/{place['split']}/{place['index']}/{place['seed']}"
    named = {name: place[name] for name in ("split", "level", "seed")}
    task = {"type": _TASK, "data": {"idx": place["index"], "id": key, **named}, "key": key}
    trace = _trace_of(record, facts, task)
    return {
        "id": record["id"],
        "env": {"id": record["environment"], "name": f"{record['environment']}@{record['version']}"},
        "task": task,
        "group": {"id": f"{facts.id}/{record['group']}"},
        "run": {"type": "eval", "id": facts.id, "name": facts.name},
        "ok": trace["ok"],
        "is_timeout": trace["is_timeout"],
        "errors": trace["errors"],
        "traces": [trace],
    }


def _trace_of(record: Plain, facts: RunFacts, task: Plain) -> Plain:
    is_ok = record["status"] == RolloutStatus.COMPLETED
    nodes = _nodes(record)
    stop = record.get("stop_reason", "")
    error = record.get("error")
    kind = _KINDS.get(error["kind"], "EnvError") if error else "EnvError"
    errors = [] if is_ok else [{"type": kind, "message": error["message"] if error else record["status"]}]
    return {
        "version": 1,
        "id": record["id"],
        "verifiers": {"version": FORMAT_VERSION},
        "task": task,
        "agent": {"config": _agent(facts), "name": "agent", "trainable": True},
        "tools": [],
        "nodes": nodes,
        "calls": _calls(record, nodes, facts),
        "rewards": dict(record.get("rewards", {})) if is_ok else dict.fromkeys(facts.columns),
        "metrics": record.get("metrics", {}),
        "info": {KEY: rest_of(record)},
        "is_completed": True,
        "ok": is_ok,
        "stop_condition": _STOPS.get(stop, stop or None) if is_ok else f"{kind.removesuffix('Error').lower()}_error",
        "is_timeout": stop == StopReason.EPISODE_TIMEOUT,
        "errors": errors,
        "timing": _timing(record),
    }


def _agent(facts: RunFacts) -> Plain:
    sampling = {name: facts.sampling[name] for name in ("temperature", "top_p", "max_tokens") if name in facts.sampling}
    return {"model": facts.model, "sampling": sampling, "runtime": {"type": "subprocess"}}


def _nodes(record: Plain) -> list[Plain]:
    spans = _spans(record)
    at = _epoch(record.get("started_at"))
    nodes = []
    for number, message in enumerate(record["messages"]):
        is_reply = message["role"] == "assistant"
        node = {"message": to_other(message), "sampled": is_reply, "timestamp": at, **spans.get(number, {})}
        nodes.append(node if number == 0 else {"parent": number - 1, **node})
    return nodes


def _spans(record: Plain) -> dict[int, Plain]:
    """Each message's own tokens: they follow one another as the model saw them, a reply where the mask says so.

    None where the tokens do not part into the replies.
    """
    tokens = record.get("tokens") or {}
    prompt, completion, mask = tokens.get("prompt"), tokens.get("completion"), tokens.get("mask")
    replies = [number for number, message in enumerate(record["messages"]) if message["role"] == "assistant"]
    if prompt is None or completion is None or mask is None or not replies or replies[0] == 0:
        return {}
    parts = _parts(mask)
    if [is_written for is_written, _, _ in parts[::2]] != [1] * len(replies):
        return {}
    logprobs = tokens.get("logprobs") or []
    spans = {replies[0] - 1: _span(prompt, 0, [])}
    for place, (is_written, start, end) in enumerate(parts):
        reply = replies[place // 2]
        if is_written:
            spans[reply] = _span(completion[start:end], 1, logprobs[start:end])
        elif reply + 1 < len(record["messages"]) and record["messages"][reply + 1]["role"] != "assistant":
            spans[reply + 1] = _span(completion[start:end], 0, [])
        else:
            spans[reply] = _after(spans[reply], completion[start:end])
    return spans


def _parts(mask: Sequence[int]) -> list[tuple[int, int, int]]:
    """(value, start, end) of stretches of the same value."""
    parts: list[tuple[int, int, int]] = []
    for place, value in enumerate(mask):
        if parts and parts[-1][0] == value:
            parts[-1] = (value, parts[-1][1], place + 1)
        else:
            parts.append((value, place, place + 1))
    return parts


def _span(ids: list[int], is_written: int, logprobs: list[float]) -> Plain:
    return {"token_ids": ids, "mask": [bool(is_written)] * len(ids), "logprobs": logprobs}


def _after(span: Plain, ids: list[int]) -> Plain:
    return {**span, "token_ids": span["token_ids"] + ids, "mask": span["mask"] + [False] * len(ids)}


def _calls(record: Plain, nodes: Sequence[Plain], facts: RunFacts) -> list[Plain]:
    """One a reply; usage is known of the whole episode and told once."""
    replies = [number for number, node in enumerate(nodes) if node["sampled"]]
    calls: list[Plain] = [
        {"node": number, "model": facts.model, "endpoint": "/chat/completions", "finish_reason": "stop"}
        for number in replies
    ]
    if calls:
        calls[-1]["usage"] = {"prompt_tokens": record["tokens_in"], "completion_tokens": record["tokens_out"]}
        calls[-1]["finish_reason"] = "length" if record["is_truncated"] else "stop"
    return calls


def _timing(record: Plain) -> Plain:
    start = _epoch(record.get("started_at"))
    end = max(_epoch(record.get("ended_at")), start)
    model, harness = record["policy_seconds"], record["environment_seconds"]
    agent = {"start": start, "end": end, "model": {"duration": model}, "harness": {"duration": harness}}
    return {"start": start, "agent": agent}


def _epoch(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def is_row(row: Mapping[str, Any]) -> bool:
    return "traces" in row or {"nodes", "rewards"} <= row.keys()


def read(row: Mapping[str, Any]) -> RolloutRecord:
    """An episode with one trace, or a bare trace. Raises ValueError."""
    trace = _only_trace(row)
    messages = _messages(trace)
    if rest := find_rest((trace.get("info") or {}).get(KEY)):
        reward = _reward(trace) if trace.get("ok") else None
        return RolloutRecord.model_validate({"messages": messages, "reward": reward, **rest})
    data = (trace.get("task") or {}).get("data") or {}
    usages = [call["usage"] for call in trace.get("calls") or [] if isinstance(call.get("usage"), Mapping)]
    earned = {name: value for name, value in (trace.get("rewards") or {}).items() if value is not None}
    error = _error(row, trace, is_scored=bool(earned))
    return RolloutRecord.model_validate(
        {
            "task": {"index": data["idx"]} if isinstance(data.get("idx"), int) else None,
            "messages": messages,
            "status": RolloutStatus.FAILED if error else RolloutStatus.COMPLETED,
            "error": error,
            "stop_reason": None if error else _STOP_REASONS.get(str(trace.get("stop_condition")), StopReason.DONE),
            "reward": None if error else _reward(trace),
            "rewards": earned,
            "metrics": {name: value for name, value in (trace.get("metrics") or {}).items() if value is not None},
            "tokens_in": sum(int(usage.get("prompt_tokens") or 0) for usage in usages),
            "tokens_out": sum(int(usage.get("completion_tokens") or 0) for usage in usages),
            "is_truncated": any(call.get("finish_reason") == "length" for call in trace.get("calls") or []),
            "tokens": _tokens(trace),
        }
    )


def _only_trace(row: Mapping[str, Any]) -> Mapping[str, Any]:
    traces = row.get("traces", [row])
    if not isinstance(traces, list) or len(traces) != 1 or not isinstance(traces[0], Mapping):
        found = len(traces) if isinstance(traces, list) else "no"
        raise ValueError(f"an episode with {found} traces: only episodes of one agent can be imported")
    return traces[0]


def _path(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """From the root to the last node: the branch that the episode ended on."""
    nodes = trace.get("nodes") or []
    path: list[Mapping[str, Any]] = []
    place: Any = len(nodes) - 1 if nodes else None
    while place is not None:
        if not isinstance(place, int) or not 0 <= place < len(nodes) or len(path) > len(nodes):
            raise ValueError("the nodes of a trace do not form a conversation")
        path.append(nodes[place])
        place = nodes[place].get("parent")
    return path[::-1]


def _messages(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [read_message(node.get("message")) for node in _path(trace)]


def _reward(trace: Mapping[str, Any]) -> float:
    earned = [value for value in (trace.get("rewards") or {}).values() if isinstance(value, Mapping)]
    return float(sum(value.get("score", 0.0) * value.get("weight", 1.0) for value in earned))


def _error(row: Mapping[str, Any], trace: Mapping[str, Any], *, is_scored: bool) -> Plain | None:
    if trace.get("ok") and is_scored:
        return None
    errors = trace.get("errors") or row.get("errors") or []
    last = errors[-1] if errors and isinstance(errors[-1], Mapping) else {}
    message = last.get("message") or f"not scored: {trace.get('stop_condition') or 'no reason given'}"
    kind = _ERROR_KINDS.get(str(last.get("type")), ErrorKind.ENVIRONMENT)
    return {"kind": kind, "message": str(message)[:20_000]}


def _tokens(trace: Mapping[str, Any]) -> Plain | None:
    path = _path(trace)
    ids = [token for node in path for token in node.get("token_ids") or []]
    mask = [int(bool(written)) for node in path for written in node.get("mask") or []]
    if not ids or len(ids) != len(mask) or 1 not in mask:
        return None
    given = iter([value for node in path for value in node.get("logprobs") or []])
    logprobs = [next(given, 0.0) if written else 0.0 for written in mask]
    first = mask.index(1)
    return {"prompt": ids[:first], "completion": ids[first:], "mask": mask[first:], "logprobs": logprobs[first:]}
