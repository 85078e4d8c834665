"""verifiers 0.4: `traces.jsonl`, one episode per line with one trace, whose conversation is a chain of nodes."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from backend.domain.rollouts.conversation import read_message, to_foreign
from backend.domain.rollouts.record import RolloutRecord
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from backend.rollouts.formats.streams import EXTRAS, Record, RunFacts, epoch, extras_of, find_extras, group_of

FORMAT_VERSION = "0.4.0"
_ERRORS = {
    ErrorKind.POLICY: "ProviderError",
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
    StopReason.CONTEXT_FULL: "max_input_tokens",
    StopReason.EPISODE_TIMEOUT: "agent_timeout",
}
_STOP_REASONS: dict[str, str] = {text: reason for reason, text in _STOPS.items()} | {
    "max_output_tokens": StopReason.TOKEN_LIMIT,
    "rollout_timeout": StopReason.EPISODE_TIMEOUT,
}


def episode_of(record: Record, facts: RunFacts) -> Record:
    place = record["task"]
    key = f"{record['content_hash']}/{place['split']}/{place['index']}/{place['seed']}"
    data = {"idx": place["index"], "id": key, **{name: place[name] for name in ("split", "level", "seed")}}
    task = {"type": "ProctorTask", "data": data, "key": key}
    is_ok, stop, error = record["status"] == RolloutStatus.COMPLETED, record.get("stop_reason"), record.get("error")
    kind = _ERRORS.get(error["kind"], "EnvError") if error else "EnvError"
    sampling = {name: facts.sampling[name] for name in ("temperature", "top_p", "max_tokens") if name in facts.sampling}
    config = {"model": facts.model, "sampling": sampling, "runtime": {"type": "subprocess"}}
    start = epoch(record.get("started_at"))

    spans = _token_spans(record)
    nodes: list[Record] = []
    calls: list[Record] = []
    for number, message in enumerate(record["messages"]):
        is_reply = message["role"] == "assistant"
        node = {"message": to_foreign(message), "sampled": is_reply, "timestamp": start, **spans.get(number, {})}
        nodes.append({"parent": number - 1, **node} if number else node)
        if is_reply:
            call = {"node": number, "model": facts.model, "endpoint": "/chat/completions", "finish_reason": "stop"}
            calls.append(call)
    if calls:  # usage is known only of the whole episode
        calls[-1]["usage"] = {"prompt_tokens": record["tokens_in"], "completion_tokens": record["tokens_out"]}
        calls[-1]["finish_reason"] = "length" if record["is_truncated"] else "stop"

    trace = {
        "version": 1,
        "id": record["id"],
        "verifiers": {"version": FORMAT_VERSION},
        "task": task,
        "agent": {"config": config, "name": "agent", "trainable": True},
        "tools": [],
        "nodes": nodes,
        "calls": calls,
        "rewards": dict(record.get("rewards", {})) if is_ok else dict.fromkeys(facts.columns),
        "metrics": record.get("metrics", {}),
        "info": {EXTRAS: extras_of(record)},
        "is_completed": True,
        "ok": is_ok,
        "stop_condition": _STOPS.get(stop or "", stop) if is_ok else f"{kind.removesuffix('Error').lower()}_error",
        "is_timeout": stop == StopReason.EPISODE_TIMEOUT,
        "errors": [] if is_ok else [{"type": kind, "message": error["message"] if error else record["status"]}],
        "timing": {
            "start": start,
            "agent": {
                "start": start,
                "end": max(epoch(record.get("ended_at")), start),
                "model": {"duration": record["policy_seconds"]},
                "harness": {"duration": record["environment_seconds"]},
            },
        },
    }
    return {
        "id": record["id"],
        "env": {"id": record["environment"], "name": f"{record['environment']}@{record['version']}"},
        "task": task,
        "group": {"id": f"{facts.id}/{group_of(record)}"},
        "run": {"type": "eval", "id": facts.id, "name": facts.name},
        **{name: trace[name] for name in ("ok", "is_timeout", "errors")},
        "traces": [trace],
    }


def _token_spans(record: Record) -> dict[int, Record]:
    """Token ids by message. Tokens follow one another as the model saw them; the mask is 1 in replies.

    Empty if the tokens cannot be divided into the replies.
    """
    tokens = record.get("tokens") or {}
    prompt, completion, mask = tokens.get("prompt"), tokens.get("completion"), tokens.get("mask")
    messages = record["messages"]
    replies = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if prompt is None or completion is None or mask is None or not replies or replies[0] == 0:
        return {}
    stretches = [(bool(value), len(list(same))) for value, same in groupby(mask)]
    if [is_sampled for is_sampled, _ in stretches[::2]] != [True] * len(replies):
        return {}

    def span(ids: list[int], is_sampled: bool, logprobs: list[float]) -> Record:
        return {"token_ids": ids, "mask": [is_sampled] * len(ids), "logprobs": logprobs}

    spans = {replies[0] - 1: span(prompt, False, [])}
    start = 0
    for place, (is_sampled, length) in enumerate(stretches):
        reply, end = replies[place // 2], start + length
        ids = completion[start:end]
        if is_sampled:
            spans[reply] = span(ids, True, (tokens.get("logprobs") or [])[start:end])
        elif reply + 1 < len(messages) and messages[reply + 1]["role"] != "assistant":
            spans[reply + 1] = span(ids, False, [])
        else:
            own = spans[reply]
            spans[reply] = {**own, "token_ids": own["token_ids"] + ids, "mask": own["mask"] + [False] * len(ids)}
        start = end
    return spans


def read(row: Mapping[str, Any]) -> RolloutRecord:
    """Read an episode with one trace, or a bare trace. Raises ValueError."""
    traces = row.get("traces", [row])
    if not isinstance(traces, list) or len(traces) != 1 or not isinstance(traces[0], Mapping):
        count = len(traces) if isinstance(traces, list) else "no"
        raise ValueError(f"an episode with {count} traces: only episodes of one agent can be imported")
    trace = traces[0]
    stored, nodes = trace.get("nodes") or [], list[Mapping[str, Any]]()
    place: object = len(stored) - 1 if stored else None
    while place is not None:  # from the last node to the root: the branch that the episode ended on
        if not isinstance(place, int) or not 0 <= place < len(stored) or len(nodes) > len(stored):
            raise ValueError("the nodes of a trace do not form a conversation")
        nodes.append(stored[place])
        place = stored[place].get("parent")
    nodes.reverse()
    messages = [read_message(node.get("message")) for node in nodes]
    rewards = {name: value for name, value in (trace.get("rewards") or {}).items() if value is not None}
    earned = [value for value in rewards.values() if isinstance(value, Mapping)]
    reward = float(sum(value.get("score", 0.0) * value.get("weight", 1.0) for value in earned))
    if extras := find_extras((trace.get("info") or {}).get(EXTRAS)):
        own = reward if trace.get("ok") else None
        return RolloutRecord.model_validate({"messages": messages, "reward": own, **extras})

    error: Record | None = None
    if not trace.get("ok") or not rewards:
        errors = trace.get("errors") or row.get("errors") or []
        last = errors[-1] if errors and isinstance(errors[-1], Mapping) else {}
        message = last.get("message") or f"not scored: {trace.get('stop_condition') or 'no reason given'}"
        kind = _ERROR_KINDS.get(str(last.get("type")), ErrorKind.ENVIRONMENT)
        error = {"kind": kind, "message": str(message)[:20_000]}
    data = (trace.get("task") or {}).get("data") or {}
    calls = trace.get("calls") or []
    usages = [call["usage"] for call in calls if isinstance(call.get("usage"), Mapping)]
    ids = [token for node in nodes for token in node.get("token_ids") or []]
    mask = [int(bool(is_sampled)) for node in nodes for is_sampled in node.get("mask") or []]
    tokens: Record | None = None
    if ids and len(ids) == len(mask) and 1 in mask:
        values = iter([value for node in nodes for value in node.get("logprobs") or []])
        logprobs = [next(values, 0.0) if is_sampled else 0.0 for is_sampled in mask]
        first = mask.index(1)
        tokens = {"prompt": ids[:first], "completion": ids[first:], "mask": mask[first:], "logprobs": logprobs[first:]}
    return RolloutRecord.model_validate(
        {
            "task": {"index": data["idx"]} if isinstance(data.get("idx"), int) else None,
            "messages": messages,
            "status": RolloutStatus.FAILED if error else RolloutStatus.COMPLETED,
            "error": error,
            "stop_reason": None if error else _STOP_REASONS.get(str(trace.get("stop_condition")), StopReason.DONE),
            "reward": None if error else reward,
            "rewards": rewards,
            "metrics": {name: value for name, value in (trace.get("metrics") or {}).items() if value is not None},
            "tokens_in": sum(int(usage.get("prompt_tokens") or 0) for usage in usages),
            "tokens_out": sum(int(usage.get("completion_tokens") or 0) for usage in usages),
            "is_truncated": any(call.get("finish_reason") == "length" for call in calls),
            "tokens": tokens,
        }
    )
