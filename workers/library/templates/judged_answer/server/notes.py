"""Notes that an answer must combine. Replace them with your material."""

import random
from typing import NamedTuple

PEOPLE = ("Ines", "Tariq", "Mei", "Oskar", "Zola", "Rafael", "Priya", "Jonas", "Leila", "Kofi", "Maren", "Anouk")
PLACES = ("harbour", "library", "museum", "station", "town hall", "old mill", "market", "botanical garden")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
THINGS = ("concert", "rehearsal", "flea market", "lecture", "chess evening", "boat trip", "workshop", "film night")
REASONS = ("the rain", "a power cut", "the strike", "a broken lift", "the marathon", "an exam", "the repairs")


class Note(NamedTuple):
    """Jotted down facts; an answer must name each of them."""

    text: str
    facts: tuple[str, ...]


def make_note(seed: int, split: str, level: int) -> Note:
    """Two facts more on the higher level. A place of the held-out split never occurs in training."""
    chance = random.Random(f"{split}:{level}:{seed}")
    place = chance.choice(PLACES[6:] if split == "heldout" else PLACES[:6])
    who, thing, old, new = chance.choice(PEOPLE), chance.choice(THINGS), *chance.sample(DAYS, 2)
    facts = [("what", thing), ("where", place), ("moved to", new)]
    if level:
        facts += [("because of", chance.choice(REASONS)), ("ask", who)]
    lines = [f"{name}: {fact}" for name, fact in facts] + [f"was planned for: {old}"]
    chance.shuffle(lines)
    return Note("\n".join(lines), tuple(fact for _, fact in facts))


def make_answer(facts: tuple[str, ...]) -> str:
    """Plain, and with all the facts."""
    what, where, day, *more = facts
    reason, who = more or ("", "")
    because, ask = (f" because of {reason}", f" Please ask {who}.") if more else ("", "")
    return f"The {what} at the {where} is moved to {day}{because}.{ask}"
