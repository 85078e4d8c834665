"""The chat completions format: messages for requests, and replies checked once.

What leaves this module has the declared types and bounds. A reply without a readable message is no completion, never an
empty answer. Optional parts (token counts, log-probabilities, token ids) are used if they are well formed and plausible
and are otherwise unknown, so that a wrong counter loses no good rollout.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from backend.domain.environments.tools import CallUnreadable, explain_for_api, split_calls, write_call
from backend.domain.errors import PolicyError
from backend.domain.text import plain_text
from workers.policies.base import Reply

Message = Mapping[str, Any]

MAX_REPLY_CHARACTERS = 2_000_000
MAX_TOKENS = 10_000_000  # per request or reply: more than any model reads; the database stores sums in four bytes
MAX_LOGPROB = 1e30
MAX_TOKEN_ID = 2**31 - 1
NOT_A_COMPLETION = "the endpoint answered JSON that is no chat completion: {}"


class NoCompletion(PolicyError):
    """The endpoint answered 200 with something else."""


@dataclass(slots=True)
class Completion:
    """A reply, with its tokens if the endpoint returns them."""

    reply: Reply
    texts: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)  # vLLM's `return_token_ids`
    ids: list[int] = field(default_factory=list)


def native_messages(messages: Sequence[Message], system: str, *, sends_reasoning: bool = False) -> list[dict[str, Any]]:
    """Write calls as `tool_calls`, and what follows a call as its `tool` messages."""
    converted: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "system":
            converted += [{"role": "system", "content": system}] if system else []
        elif message["role"] == "assistant":
            text = str(message["content"])
            try:
                before, calls, after = split_calls(text)
            except CallUnreadable:  # it stays text
                assistant: dict[str, Any] = {"role": "assistant", "content": text}
            else:
                content = "\n".join(part.strip() for part in (before, after) if part.strip())
                tool_calls = [
                    {  # some endpoints accept only call ids of nine letters and digits
                        "id": f"c{len(converted) % 100_000:05d}{number % 1000:03d}",
                        "type": "function",
                        "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                    }
                    for number, call in enumerate(calls)
                ]
                assistant = {"role": "assistant", "content": content or None, "tool_calls": tool_calls}
            if sends_reasoning and message.get("reasoning"):
                assistant["reasoning_content"] = message["reasoning"]
            converted.append(assistant)
            open_calls = [call["id"] for call in assistant.get("tool_calls", [])]
        elif open_calls:
            results = message.get("results") or [message["content"]]
            results = [*results, *[message["content"]] * (len(open_calls) - len(results))]
            converted += [
                {"role": "tool", "tool_call_id": id_, "content": content}
                for id_, content in zip(open_calls, results, strict=True)
            ]
            open_calls = []
        else:
            converted.append({"role": message["role"], "content": explain_for_api(message["content"])})
    return converted


def plain_messages(messages: Sequence[Message], *, sends_reasoning: bool = False) -> list[dict[str, Any]]:
    """Write calls as text."""
    return [
        {"role": message["role"], "content": message["content"]}
        | ({"reasoning_content": message["reasoning"]} if sends_reasoning and message.get("reasoning") else {})
        for message in messages
    ]


def write_answer(content: str, tool_calls: Any) -> str:
    """Write an answer with all its calls as canonical text.

    Arguments that are not a JSON object stay text, so that the policy sees them again. Raises TypeError, KeyError or
    ValueError if `tool_calls` does not have the API's form.
    """
    if not tool_calls:
        return content
    calls = []
    for function in [call["function"] for call in tool_calls]:
        name, arguments = function["name"], function.get("arguments")
        if not isinstance(name, str):
            raise TypeError("a call's name is not text")
        if arguments is None or arguments == "":
            arguments = {}
        calls.append(write_call(name, arguments if isinstance(arguments, Mapping) else str(arguments)))
    text = "\n".join(calls)
    return f"{content.rstrip()}\n{text}" if content.strip() else text


def read_completion(body: bytes) -> Completion:
    """Read the first choice. Raises NoCompletion."""
    try:
        response = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:  # some servers send NaN or unpaired surrogates, which the strict reader refuses
            response = json.loads(body)
        except (ValueError, RecursionError) as error:
            problem = f"the endpoint answered 200 with something that is not JSON ({len(body):,} bytes)"
            raise NoCompletion(problem) from error
    match response:
        case {"choices": [{"message": dict(message)} as choice, *_]}:
            pass
        case {"choices": [dict(), *_]}:
            raise NoCompletion(NOT_A_COMPLETION.format("choices[0].message is not an object"))
        case dict():
            raise NoCompletion(NOT_A_COMPLETION.format("it has no choices"))
        case _:
            raise NoCompletion(NOT_A_COMPLETION.format("it is not an object"))
    reasoning = message.get("reasoning_content") or message.get("reasoning")  # endpoints use either name
    reply = Reply(
        _read_text(message),
        is_truncated=choice.get("finish_reason") == "length",
        reasoning=plain_text(reasoning[:MAX_REPLY_CHARACTERS]) if isinstance(reasoning, str) else "",
    )
    if isinstance(usage := response.get("usage"), dict):
        reply.tokens_in = _read_count(usage.get("prompt_tokens"))
        reply.tokens_out = _read_count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        cached = _read_count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        reply.cached_in = cached if cached <= reply.tokens_in else 0
    completion = Completion(reply)
    completion.texts, completion.logprobs = _read_logprobs(choice.get("logprobs"))
    completion.ids = _read_token_ids(choice.get("token_ids"))
    completion.prompt_ids = _read_token_ids(response.get("prompt_token_ids")) if completion.ids else []
    return completion


def _read_text(message: Message) -> str:
    """The content with all tool calls as text. An empty or missing content is an answer, too: the policy was silent."""
    content = message.get("content")
    if content is None:
        refusal = message.get("refusal")
        content = refusal if isinstance(refusal, str) else ""
    if isinstance(content, list):
        parts: list[Any] = [part.get("text", "") if isinstance(part, dict) else None for part in content]
        content = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if not isinstance(content, str):
        raise NoCompletion(NOT_A_COMPLETION.format("the message's content is neither text nor a list of parts"))
    try:
        text = plain_text(write_answer(content, message.get("tool_calls")))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NoCompletion(NOT_A_COMPLETION.format("its tool_calls do not have the API's form")) from error
    if len(text) > MAX_REPLY_CHARACTERS:
        raise NoCompletion(f"the endpoint's reply has {len(text):,} characters; at most {MAX_REPLY_CHARACTERS:,}")
    return text


def _read_count(value: object) -> int:
    """A number of tokens; 0, which means unknown, if it is not a plausible whole number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def _read_logprobs(sent: object) -> tuple[list[str], list[float]]:
    """The tokens' texts and log-probabilities; both empty unless all of them can be read."""
    tokens = sent.get("content") if isinstance(sent, dict) else None
    texts: list[str] = []
    logprobs: list[float] = []
    for token in tokens if isinstance(tokens, list) else ():
        text, logprob = (token.get("token"), token.get("logprob")) if isinstance(token, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(logprob, int | float) or isinstance(logprob, bool):
            return [], []
        if not -MAX_LOGPROB <= logprob <= MAX_LOGPROB:  # also false for NaN
            return [], []
        texts.append(plain_text(text))
        logprobs.append(float(logprob))
    return texts, logprobs


def _read_token_ids(sent: object) -> list[int]:
    if not isinstance(sent, list) or not all(type(each) is int and 0 <= each <= MAX_TOKEN_ID for each in sent):
        return []
    return sent
