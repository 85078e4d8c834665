"""A task: the question, the right answer, its pages, and how an answer is compared with it."""

import random
import re
from dataclasses import dataclass, replace

from .facts import Fact, facts_of, fill, page_of
from .library import Library, Notice

LONGEST_ANSWER = 12
"""Words; a longer answer hedges."""
OTHER_NOTICES = 2
"""Notices that change unrelated facts."""


@dataclass(frozen=True)
class Question:
    """A question and everything needed to grade its answer."""

    text: str
    answer: str
    facts: tuple[Fact, ...]
    needed: frozenset[str]
    """Pages that are required to know the answer."""
    allowed: frozenset[str]
    """Pages that may also be named: the old page in addition to the notice that changes it."""

    def is_answered(self, text: str) -> bool:
        """Numbers: the right one and no other. Words: the right ones, and none of the other possible answers."""
        if len(text.split()) > LONGEST_ANSWER:
            return False
        numbers = re.findall(r"-?\d+(?:[.,]\d+)*", text)
        if self.answer.isdigit():
            return numbers == [self.answer]
        said = f" {_plain(text)} "
        others = [value for value in self.facts[0].values if value != self.answer]
        return f" {_plain(self.answer)} " in said and not any(f" {_plain(value)} " in said for value in others)


def make_task(seed: int, split: str, level: int) -> tuple[Question, Library]:
    """The same for the same arguments. Levels: the wording of the page; other words; a sum of two; changed since."""
    chance = random.Random(f"{seed}:{split}:{level}")
    values = fill(chance)
    known = facts_of(split)
    first = chance.choice([fact for fact in known if level != 2 or fact.unit])
    if level == 2:
        second = chance.choice([fact for fact in known if fact.unit and page_of(fact) != page_of(first)])
        return _sum(first, second, values), Library(values, _notices(chance, values, (first, second)))
    notices = _notices(chance, values, (first,))
    if level == 3:
        notices.append(_notice(chance, first, values, len(notices)))
    asked = first.reworded if level == 1 or (level == 3 and chance.random() < 0.5) else _plainly(first)
    return _one(first, values, notices[-1] if level == 3 else None, asked), Library(values, notices)


def impossible(question: Question, seed: int) -> Question:
    """The same question with an answer that is on no page: giving it proves that it was not found by reading."""
    return replace(question, answer=str(random.Random(f"canary:{seed}").randrange(10**8, 10**9)))


def _plainly(fact: Fact) -> str:
    return f"What does the handbook give as the {fact.what}?"


def _one(fact: Fact, values: dict[str, str], notice: Notice | None, asked: str) -> Question:
    page = page_of(fact).name
    if notice is None:
        return Question(asked, values[fact.name], (fact,), frozenset({page}), frozenset({page}))
    return Question(asked, notice.value, (fact,), frozenset({notice.page.name}), frozenset({notice.page.name, page}))


def _sum(first: Fact, second: Fact, values: dict[str, str]) -> Question:
    text = f"Add up two numbers of the handbook: the {first.what}, and the {second.what}. What is the sum?"
    pages = frozenset({page_of(first).name, page_of(second).name})
    return Question(text, str(int(values[first.name]) + int(values[second.name])), (first, second), pages, pages)


def _notices(chance: random.Random, values: dict[str, str], asked: tuple[Fact, ...]) -> list[Notice]:
    taken = {page_of(fact).name for fact in asked}
    free = [fact for split in ("train", "heldout") for fact in facts_of(split) if page_of(fact).name not in taken]
    return [_notice(chance, fact, values, number) for number, fact in enumerate(chance.sample(free, OTHER_NOTICES))]


def _notice(chance: random.Random, fact: Fact, values: dict[str, str], number: int) -> Notice:
    value = chance.choice([value for value in fact.values if value != values[fact.name]])
    return Notice(fact, value, number + 1)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))
