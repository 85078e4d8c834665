"""Connection test of a model endpoint: a few tiny requests, and findings that say what to do.

It follows the same rule for private addresses as the policy itself. Nothing is retried.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from backend.core.outgoing.client import BodyTooLarge, Redirected, open_session, read_body, reason_of
from backend.core.outgoing.errors import advice_for, describe_body, error_code
from backend.domain.policies.connections import MAX_MODELS, ConnectionReport, Finding
from backend.domain.text import plain_text
from backend.domain.vocabulary import CheckStatus

REQUEST_SECONDS = 20.0
TEST_SECONDS = 90.0  # no further request starts after this time
MAX_BYTES = 2_000_000
MAX_TOKENS = 32
_PASSED, _WARNED, _FAILED, _SKIPPED = CheckStatus.PASSED, CheckStatus.WARNED, CheckStatus.FAILED, CheckStatus.SKIPPED
_PARAMETERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": _PARAMETERS, "required": ["a", "b"]},
    },
}
_ANSWER = {
    "type": "object",
    "properties": {"is_even": {"type": "boolean"}},
    "required": ["is_even"],
    "additionalProperties": False,
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": _ANSWER}}


class Unreachable(Exception):
    """There was no HTTP answer, or only a redirect."""


@dataclass(slots=True)
class EndpointAnswer:
    status: int
    body: Any  # parsed JSON; None for anything else
    shown: str  # its error code, or its type and size; never its words
    advice: str
    seconds: float
    wants_newer_limit: bool  # it mentions `max_completion_tokens`
    message: dict[str, Any]  # of the first choice; empty if the answer is no completion


@dataclass(frozen=True, slots=True)
class _Option:
    """An optional feature of an endpoint, and how its absence is reported."""

    check: str
    feature: str  # as in "With … the endpoint answered HTTP 400"
    prompt: str
    fields: Mapping[str, object]
    is_used: Callable[[EndpointAnswer], bool]
    supported: tuple[str, str]  # sentence and advice
    ignored: tuple[str, str]
    refused: str  # advice
    max_tokens: int = MAX_TOKENS


def _has_logprobs(answer: EndpointAnswer) -> bool:
    try:
        return bool(answer.body["choices"][0]["logprobs"]["content"])
    except (KeyError, IndexError, TypeError):
        return False


def _fits_schema(answer: EndpointAnswer) -> bool:
    try:
        found = json.loads(answer.message["content"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("is_even"), bool)


_OPTIONS = (
    _Option(
        "seed",
        "a seed",
        "Write five random words.",
        {"seed": 7, "temperature": 1.0},
        lambda answer: True,  # compared with a second answer
        ("It accepts a seed: the same seed returned the same words twice.", ""),
        ("It accepts a seed, but the same seed returned different words.", "Repeated runs will differ."),
        "Choose “no seed” for this policy.",
    ),
    _Option(
        "tools",
        "tools",
        "Call the tool `add` with a = 2 and b = 3.",
        {"tools": [_TOOL]},
        lambda answer: bool(answer.message.get("tool_calls")),
        ("It supports native tool calls.", ""),
        (
            "It accepted the tool but wrote text instead of calling it.",
            "For environments with tools, choose “tool calls as text”, or enable tool calls in its server.",
        ),
        "Choose “tool calls as text” for this policy.",
        max_tokens=256,
    ),
    _Option(
        "logprobs",
        "log-probabilities",
        "Say hello in one word.",
        {"logprobs": True},
        _has_logprobs,
        ("It returns log-probabilities.", "Choose “log-probabilities” to store them."),
        ("It returns no log-probabilities.", "Leave them off; the heat map stays empty."),
        "Leave them off.",
    ),
    _Option(
        "schema",
        "a JSON schema",
        "Is 4 even?",
        {"response_format": _SCHEMA},
        _fits_schema,
        ("It enforces a JSON schema, which judges use for their verdicts.", ""),
        (
            "It accepted a JSON schema but did not follow it.",
            "As a judge, it is told the form in words and asked again if it fails.",
        ),
        "As a judge, it is told the form in words instead.",
        max_tokens=256,
    ),
)


@dataclass(slots=True)
class _ConnectionTest:
    """One test of an endpoint. Findings are added in order."""

    report: ConnectionReport
    key: str | None = field(repr=False)
    extra: Mapping[str, Any]
    session: aiohttp.ClientSession
    limit_field: str = "max_tokens"
    start: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        try:
            answer = await self._request("GET", "/models")
        except Unreachable as error:
            if isinstance(error.__cause__, Redirected):
                advice = "Enter that address as the base URL."
            elif "127.0.0.1" in self.report.base_url or "localhost" in self.report.base_url:
                advice = (
                    "Is its server running? The address is seen from the worker, which may be another machine or "
                    "container."
                )
            else:
                advice = "Check the address, and that workers may reach it. Admins decide about private networks."
            self._add("reach", _FAILED, f"{self.report.base_url} cannot be used: {error}.", advice)
            return
        self._add("reach", _PASSED, f"The endpoint answered in {answer.seconds:.2f} s.")
        if answer.status in {401, 403}:
            self._add_key_refused(answer)
            return
        items = answer.body.get("data") if isinstance(answer.body, dict) else None
        if answer.status == 200 and isinstance(items, list):
            names = {each.get("id") for each in items if isinstance(each, dict) and isinstance(each.get("id"), str)}
            models, model = self.report.models, self.report.model
            models += sorted({plain_text(name)[:200] for name in names if name})[:MAX_MODELS]
            some = ", ".join(models[:5]) + (", …" if len(models) > 5 else "")
            if model in models:
                self._add("model", _PASSED, f"It lists {model} among {len(models)} models.")
            else:
                sentence = f"It does not list {model}. It lists {len(models)}: {some or 'none'}."
                advice = "Choose one of its models, unless this name is an alias that it accepts."
                self._add("model", _WARNED, sentence, advice)
        else:
            sentence = f"It offers no list of models (/models answered {answer.status})."
            self._add("model", _SKIPPED, sentence, "Type the name.")
        if not await self._test_completion():
            return
        for option in _OPTIONS:
            if time.monotonic() - self.start > TEST_SECONDS:
                self._add(option.check, _SKIPPED, f"Not tried: the test took longer than {TEST_SECONDS:.0f} s.")
                continue
            try:
                await self._test_option(option)
            except Unreachable as error:
                self._add(option.check, _WARNED, f"Unknown: {error}.")

    async def _test_completion(self) -> bool:
        """Request one tiny completion. Without it, further tests would show nothing."""
        try:
            answer = await self._complete("Say hello in one word.")
        except Unreachable as error:
            self._add("completion", _FAILED, f"No completion: {error}.", "Is the model loaded? Check its server's log.")
            return False
        if answer.message:
            text = " ".join(plain_text(str(answer.message.get("content") or "")).split())[:60]
            sentence = f"It completed a prompt in {answer.seconds:.2f} s: “{text}”."
            if isinstance(answer.body.get("usage"), dict):
                self._add("completion", _PASSED, sentence)
            else:
                self._add("completion", _WARNED, f"{sentence} It counts no tokens.", "Tokens and cost will be unknown.")
            return True
        if answer.status in {401, 403}:
            self._add_key_refused(answer)
            return False
        sentence, advice = f"The endpoint answered HTTP {answer.status} ({answer.shown}).", answer.advice
        if answer.status == 404:
            advice = "Check the base URL and the model."
        elif answer.status in {402, 429}:
            advice = "Check the account's credit and limits."
        elif answer.status == 200:
            sentence = f"The answer is not a chat completion ({answer.shown})."
            advice = "The base URL should end where /chat/completions begins, often in /v1."
        self._add("completion", _FAILED, sentence, advice)
        return False

    async def _test_option(self, option: _Option) -> None:
        fields = {self.limit_field: option.max_tokens, **option.fields}
        answer = await self._complete(option.prompt, fields)
        if not answer.message:
            sentence = f"With {option.feature} the endpoint answered HTTP {answer.status} ({answer.shown})."
            is_optional = option.check != "seed" or answer.status == 400
            self._add(option.check, _WARNED, sentence, option.refused if is_optional else "")
            return
        is_used = option.is_used(answer)
        if option.check == "seed":
            again = await self._complete(option.prompt, fields)
            is_used = bool(again.message) and again.message.get("content") == answer.message.get("content")
        self._add(option.check, _PASSED if is_used else _WARNED, *(option.supported if is_used else option.ignored))

    async def _complete(self, prompt: str, fields: Mapping[str, object] | None = None) -> EndpointAnswer:
        body = {
            "model": self.report.model,
            "messages": [{"role": "user", "content": prompt}],
            self.limit_field: MAX_TOKENS,
        }
        answer = await self._request("POST", "/chat/completions", {**body, **self.extra, **(fields or {})})
        if answer.status == 400 and self.limit_field == "max_tokens" and answer.wants_newer_limit:
            self.limit_field = "max_completion_tokens"
            names = {"max_tokens": "max_completion_tokens"}
            return await self._complete(prompt, {names.get(name, name): v for name, v in (fields or {}).items()})
        return answer

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> EndpointAnswer:
        start = time.monotonic()
        url = f"{self.report.base_url.rstrip('/')}{path}"
        try:
            async with self.session.request(method, url, json=body) as response:
                content = await read_body(response, MAX_BYTES)
        except (aiohttp.ClientError, OSError, BodyTooLarge) as error:
            raise Unreachable(reason_of(error)) from error
        try:
            parsed = json.loads(content)
        except (ValueError, RecursionError):
            parsed = None
        message: dict[str, Any] = {}
        match parsed:
            case {"choices": [{"message": dict(found)}, *_]} if response.status == 200:
                message = found
        return EndpointAnswer(
            response.status,
            parsed,
            error_code(content, self.key) or describe_body(response.headers.get("Content-Type"), content),
            advice_for(response.status, content),
            time.monotonic() - start,
            b"max_completion_tokens" in content,
            message,
        )

    def _add_key_refused(self, answer: EndpointAnswer) -> None:
        sentence = f"The endpoint does not accept the key: HTTP {answer.status} ({answer.shown})."
        advice = "Enter the key again, or another one." if self.key else "Enter the key that this endpoint requires."
        self._add("key", _FAILED, sentence, advice)

    def _add(self, check: str, status: CheckStatus, sentence: str, advice: str = "") -> None:
        self.report.findings.append(Finding(check=check, status=status, sentence=sentence, advice=advice))


async def probe(
    base_url: str, model: str, key: str | None, extra: Mapping[str, Any], *, request_seconds: float = REQUEST_SECONDS
) -> ConnectionReport:
    """Test the endpoint with a few tiny requests. Never raises for what the endpoint does."""
    headers = {"Accept": "application/json", "User-Agent": "proctor"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    async with open_session(seconds=request_seconds, headers=headers) as session:
        test = _ConnectionTest(ConnectionReport(base_url=base_url, model=model), key, extra, session)
        await test.run()
    return test.report.model_copy(update={"seconds": time.monotonic() - test.start})
