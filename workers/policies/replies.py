"""The reply of a chat completions endpoint, checked once: what leaves this module has the declared types and bounds.

The answer itself decides: without a readable message there is no completion, never an empty answer. What an endpoint
adds (token counts, log-probabilities, token ids) is taken where it is well formed and plausible, and is otherwise
unknown, as with an endpoint that sends none: a wrong counter loses no good rollout.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import orjson

from backend.domain.errors import PolicyError
from backend.domain.text import plain_text
from workers.policies.base import Reply
from workers.policies.tool_messages import text_of_answer

MAX_REPLY_CHARACTERS = 2_000_000
MAX_TOKENS = 10_000_000
"""Of one request or reply: more than any model reads or writes. The database stores sums in four bytes."""
LARGEST_LOGPROB = 1e30
MAX_TOKEN_ID = 2**31 - 1
_NO_COMPLETION = "the endpoint answered JSON that is no chat completion"


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
    """The first choice of a reply. Raises NoCompletion."""
    answer = _decode(body)
    choice = _first_choice(answer)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise NoCompletion(f"{_NO_COMPLETION}: choices[0].message is not an object")
    reply = Reply(
        _text(message), is_truncated=choice.get("finish_reason") == "length", reasoning=plain_text(_reasoning(message))
    )
    _count_tokens(reply, answer.get("usage"))
    completion = Completion(reply)
    completion.texts, completion.logprobs = _logprobs(choice.get("logprobs"))
    completion.ids = _token_ids(choice.get("token_ids"))
    completion.prompt_ids = _token_ids(answer.get("prompt_token_ids")) if completion.ids else []
    return completion


def _decode(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:  # some servers send NaN, or halves of surrogate pairs, which the strict reader refuses
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise NoCompletion(
                f"the endpoint answered 200 with something that is not JSON ({len(body):,} bytes)"
            ) from error
    if not isinstance(answer, dict):
        raise NoCompletion(f"{_NO_COMPLETION}: it is not an object")
    return answer


def _first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise NoCompletion(f"{_NO_COMPLETION}: it has no choices")
    return choices[0]


def _text(message: dict[str, Any]) -> str:
    """The content with all tool calls in our spelling."""
    content = _content(message)
    try:
        text = plain_text(text_of_answer(content, message.get("tool_calls")))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NoCompletion(f"{_NO_COMPLETION}: its tool_calls do not have the API's form") from error
    if len(text) > MAX_REPLY_CHARACTERS:
        raise NoCompletion(f"the endpoint's reply has {len(text):,} characters; at most {MAX_REPLY_CHARACTERS:,}")
    return text


def _content(message: dict[str, Any]) -> str:
    """The text of a message; an empty or missing text is an answer too: the policy said nothing."""
    content = message.get("content")
    if content is None:
        refusal = message.get("refusal")
        return refusal if isinstance(refusal, str) else ""
    if isinstance(content, list):
        content = _joined(content)
    if not isinstance(content, str):
        raise NoCompletion(f"{_NO_COMPLETION}: the message's content is neither text nor a list of parts")
    return content


def _joined(parts: list[Any]) -> str | None:
    """The text of all parts; None when one of them is not a part."""
    found: list[str] = []
    for part in parts:
        text = part.get("text", "") if isinstance(part, dict) else None
        if not isinstance(text, str):
            return None
        found.append(text)
    return "".join(found)


def _reasoning(message: dict[str, Any]) -> str:
    """Endpoints spell it in two ways."""
    told = message.get("reasoning_content") or message.get("reasoning")
    return told[:MAX_REPLY_CHARACTERS] if isinstance(told, str) else ""


def _count_tokens(reply: Reply, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    reply.tokens_in = _count(usage.get("prompt_tokens"))
    reply.tokens_out = _count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    reply.cached_in = cached if cached <= reply.tokens_in else 0


def _count(value: Any) -> int:
    """A whole number of tokens; 0, which stands for unknown, when it is none or is implausible."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def _logprobs(sent: Any) -> tuple[list[str], list[float]]:
    """The tokens' texts and log-probabilities; both empty unless all of them can be read."""
    tokens = sent.get("content") if isinstance(sent, dict) else None
    if not isinstance(tokens, list):
        return [], []
    texts: list[str] = []
    logprobs: list[float] = []
    for token in tokens:
        if not isinstance(token, dict):
            return [], []
        text, logprob = token.get("token"), token.get("logprob")
        if not isinstance(text, str) or not isinstance(logprob, int | float) or isinstance(logprob, bool):
            return [], []
        if not -LARGEST_LOGPROB <= logprob <= LARGEST_LOGPROB:  # also false for NaN
            return [], []
        texts.append(plain_text(text))
        logprobs.append(float(logprob))
    return texts, logprobs


def _token_ids(sent: Any) -> list[int]:
    if not isinstance(sent, list) or not all(type(each) is int and 0 <= each <= MAX_TOKEN_ID for each in sent):
        return []
    return sent
