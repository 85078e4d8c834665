"""The body of a chat completion, read. What is none is a failure of the endpoint, never an empty answer."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from backend.domain.errors import PolicyError
from workers.policies.base import Reply
from workers.policies.tool_messages import text_of_answer


class NoCompletion(PolicyError):
    """The endpoint answered 200 with something else."""


@dataclass(slots=True)
class Completion:
    """One answer, and its tokens where the endpoint tells them."""

    reply: Reply
    texts: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    """vLLM's `return_token_ids`."""
    ids: list[int] = field(default_factory=list)


def read_completion(body: bytes) -> Completion:
    try:
        answer = orjson.loads(body)
        choice = answer["choices"][0]
        message = choice["message"]
        text = text_of_answer(_content(message), message.get("tool_calls"))
        reply = Reply(text, is_truncated=choice.get("finish_reason") == "length", reasoning=_reasoning(message))
        _count_tokens(reply, answer.get("usage") or {})
        completion = Completion(reply)
        if told := choice.get("logprobs"):
            _read_logprobs(completion, told)
        if ids := choice.get("token_ids"):
            completion.ids = [int(each) for each in ids]
            completion.prompt_ids = [int(each) for each in answer.get("prompt_token_ids") or ()]
        return completion
    except orjson.JSONDecodeError as error:
        raise NoCompletion(f"the endpoint answered 200 with something that is not JSON: {in_words(body)}") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise NoCompletion(f"the endpoint answered JSON that is no chat completion: {in_words(body)}") from error


def _count_tokens(reply: Reply, usage: dict[str, Any]) -> None:
    reply.tokens_in = int(usage.get("prompt_tokens") or 0)
    reply.tokens_out = int(usage.get("completion_tokens") or 0)
    if details := usage.get("prompt_tokens_details"):
        reply.cached_in = int(details.get("cached_tokens") or 0)


def _read_logprobs(completion: Completion, told: dict[str, Any]) -> None:
    for token in told.get("content") or ():
        completion.texts.append(str(token["token"]))
        completion.logprobs.append(float(token["logprob"]))


def _content(message: dict[str, Any]) -> str:
    """The text of a message; an empty or missing text is an answer too: the policy said nothing."""
    content = message.get("content")
    if content is None:
        content = message.get("refusal") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise TypeError("content is neither text nor parts")
    return content


def _reasoning(message: dict[str, Any]) -> str:
    """Endpoints spell it in two ways."""
    told = message.get("reasoning_content") or message.get("reasoning") or ""
    return told if isinstance(told, str) else ""


def in_words(body: bytes) -> str:
    """What an error body says, short and in one line."""
    text = body[:4000].decode("utf-8", "replace")
    try:
        error = orjson.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        pass
    line = " ".join(text.split())
    return f"{line[:300]}…" if len(line) > 300 else line or "(nothing)"
