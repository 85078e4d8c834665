"""Tags: short words that people give runs, environments and checkpoints."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

MAX_TAGS = 20
"""Per item."""
MAX_TAG = 64
"""Characters."""


def _split(value: object) -> object:
    """Split text at commas, also inside a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return value
    return [part for text in texts for part in text.split(",")]


def _checked(tags: list[str]) -> list[str]:
    """Return each tag once, without surrounding spaces, in the order given."""
    unique = list(dict.fromkeys(stripped for tag in tags if (stripped := " ".join(tag.split()))))
    for tag in unique:
        if len(tag) > MAX_TAG:
            raise ValueError(f"A tag has at most {MAX_TAG} characters; {tag[:20]}… has {len(tag):,}")
    if len(unique) > MAX_TAGS:
        raise ValueError(f"There can be at most {MAX_TAGS} tags; these are {len(unique)}")
    return unique


Tags = Annotated[list[str], BeforeValidator(_split), AfterValidator(_checked), Field(max_length=1000)]
