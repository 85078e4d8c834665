"""A look at a model endpoint, with a few tiny requests: what it answers, in sentences that say what to do.

It connects under the same rule for private addresses as the policy itself.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.core.outgoing.client import open_session
from backend.domain.policies.connections import MAX_MODELS, ConnectionReport, Finding
from backend.domain.text import plain_text
from backend.domain.vocabulary import CheckStatus
from workers.policies.probe_requests import Answer, Asking, Unreachable

REQUEST_SECONDS = 20.0
WHOLE_SECONDS = 90.0
"""Nothing more is asked after this."""
_OK, _WARN, _BAD, _SKIP = CheckStatus.PASSED, CheckStatus.WARNED, CheckStatus.FAILED, CheckStatus.SKIPPED
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"is_even": {"type": "boolean"}},
            "required": ["is_even"],
            "additionalProperties": False,
        },
    },
}


@dataclass(slots=True)
class _Probe:
    """One look. Findings are added in order."""

    line: Asking
    findings: list[Finding] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    async def look(self) -> None:
        listed = await self._reach()
        if listed is None:
            return
        self._read_models(listed)
        if not await self._complete():
            return
        for check, ask in (
            ("seed", self._seed),
            ("tools", self._tools),
            ("logprobs", self._logprobs),
            ("schema", self._schema),
        ):
            if time.monotonic() - self.began > WHOLE_SECONDS:
                self._find(check, _SKIP, f"Not tried: the endpoint took longer than {WHOLE_SECONDS:.0f} s so far.")
                continue
            try:
                await ask()
            except Unreachable as error:
                self._find(check, _WARN, f"Not known: {error}.")

    async def _reach(self) -> Answer | None:
        """None when nothing more can be asked."""
        try:
            answer = await self.line.ask("GET", "/models")
        except Unreachable as error:
            advice = "Enter that address as the base URL." if error.is_redirect else _advice(self.line.base_url)
            self._find("reach", _BAD, f"{self.line.base_url} cannot be used: {error}.", advice)
            return None
        self._find("reach", _OK, f"The endpoint answered in {answer.seconds:.2f} s.")
        if answer.status in {401, 403}:
            self._find(
                "key",
                _BAD,
                f"The endpoint does not accept the key: HTTP {answer.status} ({answer.shown}).",
                self._key_advice(),
            )
            return None
        return answer

    def _key_advice(self) -> str:
        return "Enter the key again, or another one." if self.line.key else "Enter the key that this endpoint asks for."

    def _read_models(self, answer: Answer) -> None:
        items = answer.body.get("data") if isinstance(answer.body, dict) else None
        if answer.status != 200 or not isinstance(items, list):
            self._find(
                "model", _SKIP, f"It offers no list of models (/models answered {answer.status}).", "Type the name."
            )
            return
        names = (item.get("id") for item in items if isinstance(item, dict))
        self.models = sorted({plain_text(name)[:200] for name in names if isinstance(name, str) and name})[:MAX_MODELS]
        if self.line.model in self.models:
            self._find("model", _OK, f"It lists {self.line.model} among {len(self.models)} models.")
            return
        some = ", ".join(self.models[:5]) + (", …" if len(self.models) > 5 else "")
        self._find(
            "model",
            _WARN,
            f"It does not list {self.line.model}. It lists {len(self.models)}: {some or 'none'}.",
            "Choose one of its models, unless this name is an alias that it knows.",
        )

    async def _complete(self) -> bool:
        """One tiny completion. False: the rest would tell nothing."""
        try:
            answer = await self.line.completion("Say hello in one word.")
        except Unreachable as error:
            self._find("completion", _BAD, f"No completion: {error}.", "Is the model loaded? Look at its server's log.")
            return False
        if answer.is_completion:
            said = " ".join(plain_text(str(answer.message.get("content") or "")).split())[:60]
            counts = isinstance(answer.body.get("usage"), dict)
            told = f"It completes in {answer.seconds:.2f} s: “{said}”."
            if counts:
                self._find("completion", _OK, told)
            else:
                self._find("completion", _WARN, f"{told} It counts no tokens.", "Tokens and cost will not be known.")
            return True
        if answer.status in {401, 403}:
            self._find(
                "key",
                _BAD,
                f"The endpoint does not accept the key: HTTP {answer.status} ({answer.shown}).",
                self._key_advice(),
            )
        elif answer.status == 404:
            self._find(
                "completion",
                _BAD,
                f"The endpoint answered HTTP 404 ({answer.shown}).",
                "Check the base URL and the model.",
            )
        elif answer.status in {402, 429}:
            self._find(
                "completion",
                _BAD,
                f"The endpoint answered HTTP {answer.status} ({answer.shown}).",
                "Look at the account's credit and limits.",
            )
        elif answer.status == 200:
            self._find(
                "completion",
                _BAD,
                f"The answer is not a chat completion ({answer.shown}).",
                "The base URL should end where /chat/completions begins, often in /v1.",
            )
        else:
            self._find(
                "completion", _BAD, f"The endpoint answered HTTP {answer.status} ({answer.shown}).", answer.advice
            )
        return False

    async def _seed(self) -> None:
        question = "Write five random words."
        first = await self.line.completion(question, seed=7, temperature=1.0)
        if not first.is_completion:
            advice = "Choose “no seed” for this policy." if first.status == 400 else ""
            self._find("seed", _WARN, f"With a seed the endpoint answered HTTP {first.status} ({first.shown}).", advice)
            return
        second = await self.line.completion(question, seed=7, temperature=1.0)
        if second.is_completion and second.message.get("content") == first.message.get("content"):
            self._find("seed", _OK, "It takes a seed: the same seed gave the same words twice.")
            return
        self._find(
            "seed",
            _WARN,
            "It takes a seed, but the same seed gave other words.",
            "A run again will not be the same word for word.",
        )

    async def _tools(self) -> None:
        answer = await self.line.completion(
            "Call the tool `add` with a = 2 and b = 3.", tools=[_TOOL], **{self.line.limit_field: 256}
        )
        if answer.is_completion and answer.message.get("tool_calls"):
            self._find("tools", _OK, "It calls tools by the API's own means.")
        elif answer.is_completion:
            self._find(
                "tools",
                _WARN,
                "It took the tool but wrote text instead of calling it.",
                "For environments with tools choose “tool calls as text”, or start its server with tool calls.",
            )
        else:
            self._find(
                "tools",
                _WARN,
                f"With tools the endpoint answered HTTP {answer.status} ({answer.shown}).",
                "Choose “tool calls as text” for this policy.",
            )

    async def _logprobs(self) -> None:
        answer = await self.line.completion("Say hello in one word.", logprobs=True)
        if answer.is_completion and _has_logprobs(answer.body):
            self._find("logprobs", _OK, "It gives log-probabilities.", "Choose “log-probabilities” to store them.")
        elif answer.is_completion:
            self._find("logprobs", _WARN, "It gives no log-probabilities.", "Leave them off; the heat map stays empty.")
        else:
            self._find(
                "logprobs",
                _WARN,
                f"With log-probabilities the endpoint answered HTTP {answer.status} ({answer.shown}).",
                "Leave them off.",
            )

    async def _schema(self) -> None:
        answer = await self.line.completion("Is 4 even?", response_format=_SCHEMA, **{self.line.limit_field: 256})
        if answer.is_completion and _fits(answer.message.get("content")):
            self._find("schema", _OK, "It keeps to a JSON schema, which a judge's verdict needs.")
        elif answer.is_completion:
            self._find(
                "schema",
                _WARN,
                "It took a JSON schema but did not keep to it.",
                "As a judge it is told the form in words and asked once more when it fails.",
            )
        else:
            self._find(
                "schema",
                _WARN,
                f"With a JSON schema the endpoint answered HTTP {answer.status} ({answer.shown}).",
                "As a judge it is told the form in words instead.",
            )

    def _find(self, check: str, status: CheckStatus, sentence: str, advice: str = "") -> None:
        self.findings.append(Finding(check=check, status=status, sentence=sentence, advice=advice))


async def probe(
    base_url: str, model: str, key: str | None, extra: Mapping[str, Any], *, request_seconds: float = REQUEST_SECONDS
) -> ConnectionReport:
    """Ask the endpoint a few tiny things. Never raises for what the endpoint does."""
    headers = {"Accept": "application/json", "User-Agent": "proctor"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    async with open_session(seconds=request_seconds, headers=headers) as session:
        looking = _Probe(Asking(base_url, model, key, extra, session))
        await looking.look()
    return ConnectionReport(
        base_url=base_url,
        model=model,
        findings=looking.findings,
        models=looking.models,
        seconds=time.monotonic() - looking.began,
    )


def _advice(base_url: str) -> str:
    if "127.0.0.1" in base_url or "localhost" in base_url:
        return "Is its server running? The address is seen from the worker, which may be another machine or container."
    return "Check the address, and that workers may reach it; an administrator decides about private networks."


def _has_logprobs(body: Any) -> bool:
    try:
        return bool(body["choices"][0]["logprobs"]["content"])
    except (KeyError, IndexError, TypeError):
        return False


def _fits(content: Any) -> bool:
    try:
        found = json.loads(content)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("is_even"), bool)
