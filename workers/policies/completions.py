"""The words of an endpoint's error body."""

import orjson


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
