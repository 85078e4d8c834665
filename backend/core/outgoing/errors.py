"""Error responses of foreign servers, described without repeating what they say.

An error body may come from any service in reach, so that only its type, its size and a code from a known vocabulary
are shown. The advice is our own, chosen by status and by phrases that model servers are known to use.
"""

import re
from collections.abc import Mapping

import orjson

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,30}/[a-z0-9][a-z0-9.+-]{0,50}")
_CODE = re.compile(r"[A-Za-z][a-z]*([._-]?[A-Z]?[a-z]+){0,7}")
"""Words, as `model_not_found` or `BadRequestError`; keys have digits."""
_MAX_CODE = 48
_MAX_PARSED = 64_000
_PHRASES = (
    (
        re.compile(r"context[ _-]?(length|window|size)|maximum context|max_model_len|n_ctx", re.IGNORECASE),
        "The prompt and the token limit exceed the model's context length: lower the tokens per turn, or choose a"
        " model with a longer context.",
    ),
    (
        re.compile(r"tool[- _]?(choice|call|use)|does not support tools|enable-auto-tool", re.IGNORECASE),
        "The server refuses tools: choose “tool calls as text” for this policy, or start the server with tool calls.",
    ),
    (
        re.compile(r"\bseed\b", re.IGNORECASE),
        "The server refuses a seed: choose “no seed” for this policy.",
    ),
    (
        re.compile(r"log_?probs|return_token_ids", re.IGNORECASE),
        "The server gives no log-probabilities or token ids: turn them off for this policy.",
    ),
    (re.compile(r"\btemperature\b|\btop_p\b", re.IGNORECASE), "The model refuses this temperature or top_p."),
    (re.compile(r"response_format|json_schema", re.IGNORECASE), "The server refuses a JSON schema."),
    (
        re.compile(r"model.{0,200}(not (be )?found|does not exist|not supported)|no such model", re.IGNORECASE),
        "The server does not know this model: check its name.",
    ),
    (
        re.compile(r"insufficient_quota|billing|credit|payment", re.IGNORECASE),
        "The account has no credit left.",
    ),
)
_ADVICE = {
    400: "The server refused the request; its own log has the reason.",
    401: "The key was not accepted: enter it again.",
    402: "The account has no credit left.",
    403: "The key may not do this: check its permissions.",
    404: "Check the address and the model's name.",
    413: "The request is too large for this server.",
    422: "The server refused the request; its own log has the reason.",
    429: "Lower the request limit or try again later.",
}


def describe_body(content_type: str | None, body: bytes | int) -> str:
    """Return media type and size, for example `application/json, 83 bytes`."""
    size = body if isinstance(body, int) else len(body)
    media = (content_type or "").partition(";")[0].strip().lower()
    return f"{media if _MEDIA_TYPE.fullmatch(media) else 'unknown type'}, {size:,} bytes"


def describe_error(status: int, headers: Mapping[str, str], body: bytes, *, secret: str | None = None) -> str:
    """Return one line about an error response: its status, its code where it has a known form, and advice.

    `secret`: never shown, even where it looks like a code.
    """
    code = error_code(body, secret)
    shown = f"HTTP {status} ({code})" if code else f"HTTP {status} ({describe_body(headers.get('Content-Type'), body)})"
    advice = advice_for(status, body)
    return f"{shown}. {advice}".rstrip()


def error_code(body: bytes, secret: str | None = None) -> str:
    """Return `code` or `type` of an OpenAI-style error object; empty where it has none that is a plain word."""
    error = _error_object(body)
    for value in (error.get("code"), error.get("type")):
        if isinstance(value, str) and len(value) <= _MAX_CODE and _CODE.fullmatch(value) and value != secret:
            return value
    return ""


def advice_for(status: int, body: bytes) -> str:
    """Return advice about an error response, without quoting it."""
    if status in {400, 404, 413, 422, 429}:
        error = _error_object(body)
        parts = (error.get(name) for name in ("code", "type", "message", "error", "detail"))
        text = " ".join(part[:2000] for part in parts if isinstance(part, str))
        for phrase, advice in _PHRASES:
            if phrase.search(text):
                return advice
    if status in _ADVICE:
        return _ADVICE[status]
    return "The server failed; its own log has the reason." if status >= 500 else ""


def _error_object(body: bytes) -> Mapping[str, object]:
    """The error of `{"error": {…}}`, or a flat object as older vLLM servers send it."""
    if len(body) > _MAX_PARSED:
        return {}
    try:
        found = orjson.loads(body)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, dict) and isinstance(found.get("error"), dict):
        found = found["error"]
    return found if isinstance(found, dict) else {}
