"""Questions about the handbook. Its numbers differ from task to task, so memorizing them does not help."""

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_TEXT = Path(__file__).with_name("handbook.txt")
_FACTS = Path(__file__).with_name("facts.txt")
HELDOUT_EVERY = 4
"""Every fourth page has questions in held-out tasks only."""


@dataclass(frozen=True)
class Fact:
    """A blank in a page, its question, and its possible values."""

    name: str
    what: str
    """In the words of the page."""
    reworded: str
    """The same question in other words."""
    values: tuple[str, ...]
    unit: str = ""
    """Of numbers; empty where the value is words."""


@dataclass(frozen=True)
class Page:
    """One page; its text has blanks."""

    name: str
    title: str
    text: str


@cache
def facts() -> tuple[Fact, ...]:
    """One a line of the file: name | what | reworded | values | unit."""
    lines = _FACTS.read_text(encoding="utf-8").splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in lines]
    return tuple(Fact(name, what, reworded, _values(values), unit) for name, what, reworded, values, unit in rows)


def _values(text: str) -> tuple[str, ...]:
    """`21 to 34`, `25 to 70 by 5`, or words with commas between them."""
    span = re.fullmatch(r"(\d+) to (\d+)(?: by (\d+))?", text)
    if span is None:
        return tuple(text.split(", "))
    low, high, step = int(span[1]), int(span[2]), int(span[3] or 1)
    return tuple(str(number) for number in range(low, high + 1, step))


@cache
def pages() -> tuple[Page, ...]:
    """The handbook as it was written, blanks included."""
    parts = _TEXT.read_text(encoding="utf-8").strip().split("# ")[1:]
    found = []
    for part in parts:
        head, _, text = part.partition("\n")
        name, _, title = head.partition(" | ")
        found.append(Page(name, title.strip(), " ".join(text.split())))
    return tuple(found)


@cache
def page_of(fact: Fact) -> Page:
    return next(page for page in pages() if f"{{{fact.name}}}" in page.text)


@cache
def facts_of(split: str) -> tuple[Fact, ...]:
    """The facts of a split. No page has questions in both splits."""
    is_heldout = {page.name: number % HELDOUT_EVERY == 3 for number, page in enumerate(pages())}
    return tuple(fact for fact in facts() if is_heldout[page_of(fact).name] == (split == "heldout"))


def fill(chance: random.Random) -> dict[str, str]:
    """A value for every blank."""
    return {fact.name: chance.choice(fact.values) for fact in facts()}
