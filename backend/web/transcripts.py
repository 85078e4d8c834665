"""A rollout as a page shows it: messages in order, each reply with the rewards of its step. All text is untrusted."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from backend.domain.environments.tools import CallUnreadable, split_calls
from backend.domain.environments.views import MAX_HISTORY, RenderedView, ViewRenderer
from backend.domain.text import json_text

LONG_TEXT = 1500
"""Characters from which a message is collapsed."""
MOST_ENTRIES = 120
"""Messages of a conversation that are shown unless all are requested."""
MOST_MARKED = 60
"""Marked messages in its middle that are shown as well."""
MOST_CHARACTERS = 20_000
"""Characters of one message that are shown unless all are requested."""
EXCERPT_START, EXCERPT_END = 24, 16
"""Messages at the beginning and at the end of a conversation that a report shows."""
EXCERPT_CHARACTERS = 3_000
"""Characters of one message that a report shows."""
SHORTEST_TIMING = 0.0005
"""Seconds. Less is not shown: it would read as 0 ms."""
_TIMINGS = {"waited": "queue_seconds", "policy": "policy_seconds", "environment": "environment_seconds"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text, marked if a detector points at it."""

    text: str
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Characters that a detector points at: in a reply, in its reasoning, or in the environment's answer to it."""

    turn: int
    """-1: before the first reply."""
    start: int
    end: int
    part: str = "said"
    """A `domain.citations.Part`."""
    quote: str = ""
    """The text there: a turn may have several messages of the environment."""


@dataclass(frozen=True, slots=True)
class ColumnReward:
    """One reward column of one step."""

    name: str
    value: float
    worth: float
    """Value times weight: its contribution to the reward."""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A parsed tool call."""

    said: str
    """Text around it in the reply."""
    name: str
    arguments: Mapping[str, Any]
    note: str = ""
    """Why it was not executed, if several were requested."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, and for a reply the step that it caused."""

    role: str
    """`system`, `user` (the environment) or `assistant` (the policy)."""
    pieces: list[Piece]
    turn: int | None = None
    """Replies only: index of the step."""
    rewards: Sequence[ColumnReward] = ()
    """Reward columns of the step in the run's order, then those without a weight."""
    action: Any = None
    note: str | None = None
    is_done: bool = False
    is_cited: bool = False
    """Whether a flag's evidence points at this turn."""
    timings: Sequence[tuple[str, float]] = ()
    """Replies only: known durations in seconds."""
    reasoning: str = ""
    thought: Sequence[Piece] = ()
    """The reasoning in pieces, if something points at it."""
    calls: Sequence[ShownCall] = ()
    """Replies only: the tool calls, in their order."""
    not_made: Sequence[ShownCall] = ()
    """Replies only: further calls that were requested but not executed."""
    tool: str = ""
    """Environment only: the tool whose result this is."""
    results: Sequence[str] = ()
    """Environment only: each result, if there were several calls."""
    left_out: int = 0
    """Characters at the end that are not shown."""
    place: int | None = None
    """Index of the message in the conversation."""
    tokens: tuple[int, int] = (0, 0)
    """Replies only: tokens read and written, if they are known."""
    cost: float | None = None
    """Replies only: US dollars."""
    seen_at: int | None = None
    """Environment only: the step whose observation this is; -1 for that of the reset."""
    views: Sequence[RenderedView] = ()
    """How that observation looks, if the environment declares it."""

    @property
    def is_long(self) -> bool:
        return sum(len(piece.text) for piece in self.pieces) > LONG_TEXT

    @property
    def has_marks(self) -> bool:
        return any(piece.is_marked for piece in (*self.pieces, *self.thought))


def transcript_of(
    messages: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    weights: Sequence[float] = (),
    quotes: Iterable[str] = (),
    cited_turns: Iterable[int] = (),
    spans: Iterable[Span] = (),
    first_place: int = 0,
    first_turn: int = 0,
    first_step: int = 0,
) -> list[Entry]:
    """Return the conversation as entries; reply n caused step n. `spans`, and `quotes` where they occur, are marked.

    `messages` may be a part that begins with message `first_place` before reply `first_turn`, and `steps` one that
    begins with step `first_step`.
    """
    quotes = [quote for quote in quotes if quote.strip()]
    ranges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list, {turn: [] for turn in cited_turns})
    other_spans: list[Span] = []
    for span in spans:
        if span.part == "said":
            ranges[span.turn].append((span.start, span.end))
        else:
            other_spans.append(span)

    def ranges_in(text: str, part: str, turn: int) -> list[tuple[int, int]]:
        own = (span for span in other_spans if (span.part, span.turn) == (part, turn))
        return [(span.start, span.end) for span in own if span.quote in ("", text[span.start : span.end])]

    if not messages:  # records without messages: replies and observations alternate
        messages = [
            message
            for step in steps
            for message in (
                {"role": "assistant", "content": step.get("reply", "")},
                *([{"role": "user", "content": step["text"]}] if step.get("text") else ()),
            )
        ]
    weight_of = dict(zip(columns, weights or [1.0] * len(columns), strict=False))
    entries: list[Entry] = []
    turn, tool = first_turn, ""
    for place, message in enumerate(messages, first_place):
        text = str(message.get("content") or "")
        if message.get("role") != "assistant":
            results = message.get("results")
            entries.append(
                Entry(
                    str(message.get("role", "user")),
                    mark(text, quotes, ranges_in(text, "heard", turn - 1)),
                    tool=tool,
                    place=place,
                    seen_at=turn - 1 if message.get("role") == "user" else None,
                    results=[str(each) for each in results] if isinstance(results, list) and len(results) > 1 else (),
                )
            )
            tool = ""
            continue
        step = steps[turn - first_step] if turn - first_step < len(steps) else {}
        calls = _calls(text, step)
        tool = ", ".join(call.name for call in calls)
        reasoning = str(message.get("reasoning") or "")
        cited = ranges_in(reasoning, "thought", turn)
        rewards = step.get("rewards") or {}
        names = [name for name in weight_of if name in rewards] + sorted(set(rewards) - set(weight_of))
        entry = Entry(
            "assistant",
            mark(text, quotes, ranges.get(turn, ())),
            turn=turn,
            place=place,
            tokens=(int(step.get("tokens_in") or 0), int(step.get("tokens_out") or 0)),
            cost=step.get("cost"),
            rewards=[ColumnReward(name, rewards[name], rewards[name] * weight_of.get(name, 0.0)) for name in names],
            action=step.get("action"),
            note=step.get("note"),
            is_done=bool(step.get("done")),
            is_cited=turn in ranges,
            timings=[
                (name, float(seconds))
                for name, seconds in ((name, step.get(key)) for name, key in _TIMINGS.items())
                if isinstance(seconds, int | float) and seconds >= SHORTEST_TIMING
            ],
            reasoning=reasoning,
            not_made=[
                ShownCall("", str(call["name"]), call["arguments"])
                for call in message.get("not_made") or ()
                if isinstance(call["arguments"], dict)
            ],
        )
        thought = mark(reasoning, (), cited) if cited else ()
        entries.append(replace(entry, calls=() if entry.has_marks else calls, thought=thought))
        turn += 1
    return entries


def with_views(
    entries: Sequence[Entry],
    renderer: ViewRenderer,
    opening: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    *,
    first_step: int = 0,
    is_end_shown: bool = True,
) -> list[Entry]:
    """Add the views to the messages of the environment.

    The policy does not read the last observation, so no message holds it: with `is_end_shown`, its views follow the
    last reply as an entry without text.
    """
    if not renderer.specs:
        return list(entries)

    def views_at(turn: int) -> list[RenderedView]:
        at = turn - first_step
        step = {"observation": opening, "action": None} if turn < 0 else steps[at] if 0 <= at < len(steps) else {}
        history = steps[max(0, at + 1 - MAX_HISTORY) : at + 1] if turn >= 0 else ()
        return renderer.render(step.get("observation") or {}, step.get("action"), opening, history)

    shown, last_seen = [], None
    for entry in entries:
        if entry.seen_at is not None and entry.seen_at != last_seen:
            entry, last_seen = replace(entry, views=views_at(entry.seen_at)), entry.seen_at
        shown.append(entry)
    last = entries[-1] if entries else None
    if is_end_shown and last is not None and last.turn is not None and (views := views_at(last.turn)):
        shown.append(Entry("user", [], seen_at=last.turn, views=views))
    return shown


def _calls(text: str, step: Mapping[str, Any]) -> list[ShownCall]:
    """Parse the calls in a reply that were also executed as calls: any text may look like a call."""
    try:
        before, calls, after = split_calls(text)
    except CallUnreadable:
        return []
    made, action = step.get("calls"), step.get("action")
    outcomes = made if isinstance(made, list) and len(made) == len(calls) else [step]
    values = list(action.values()) if isinstance(action, Mapping) else []
    if len(outcomes) != len(calls) or calls[0].name not in values or calls[0].arguments not in values:
        return []
    said = f"{before.strip()}\n{after.strip()}".strip()
    notes = [str(outcome.get("note") or "") if len(calls) > 1 else "" for outcome in outcomes]
    return [
        ShownCall("" if number else said, call.name, call.arguments, note)
        for number, (call, note) in enumerate(zip(calls, notes, strict=True))
    ]


def bounded(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """Return as much of a conversation as a page shows at once, and the number of messages omitted from its middle.

    Marked messages stay and keep their whole text.
    """
    shown = [shortened(entry) for entry in entries]
    if len(shown) <= MOST_ENTRIES:
        return shown, 0
    half = MOST_ENTRIES // 2
    middle = shown[half:-half]
    marked = [entry for entry in middle if entry.has_marks or entry.is_cited][:MOST_MARKED]
    return [*shown[:half], *marked, *shown[-half:]], len(middle) - len(marked)


def shortened(entry: Entry) -> Entry:
    """Cut the end of a very long message, unless something is marked in it."""
    text = entry.pieces[0].text if entry.pieces else ""
    left_out = max(0, len(text) - MOST_CHARACTERS) + max(0, len(entry.reasoning) - MOST_CHARACTERS)
    if not left_out or entry.has_marks:
        return entry
    pieces, reasoning = [Piece(text[:MOST_CHARACTERS])], entry.reasoning[:MOST_CHARACTERS]
    return replace(entry, pieces=pieces, reasoning=reasoning, left_out=left_out, calls=())


def excerpt(entries: Sequence[Entry]) -> list[Entry]:
    """Return as much of a conversation as a report shows: its beginning and its end, with long texts cut."""
    omitted = len(entries) - EXCERPT_START - EXCERPT_END
    if omitted <= 1:
        return [_cut(entry) for entry in entries]
    gap = Entry("not shown", [Piece(f"{omitted:,} messages are not shown here.")])
    return [*map(_cut, entries[:EXCERPT_START]), gap, *map(_cut, entries[-EXCERPT_END:])]


def _cut(entry: Entry) -> Entry:
    """Cut everything in an entry that is long, also if something is marked in it."""
    pieces, left = [], EXCERPT_CHARACTERS
    for piece in entry.pieces:
        if left > 0 or not piece.text:
            pieces.append(replace(piece, text=piece.text[:left]))
        left -= len(piece.text)
    whole = len(json_text([[asdict(call) for call in (*entry.calls, *entry.not_made)], entry.action, entry.note]))
    is_long = left < 0 or len(entry.reasoning) > EXCERPT_CHARACTERS or whole > 2 * EXCERPT_CHARACTERS
    if not is_long:
        return entry
    return replace(
        entry,
        pieces=pieces,
        reasoning=entry.reasoning[:EXCERPT_CHARACTERS],
        thought=(),
        calls=(),
        not_made=(),
        results=(),
        action=entry.action if whole <= 2 * EXCERPT_CHARACTERS else None,
        note=(entry.note or "")[:300] or None,
        left_out=max(0, -left) + max(0, len(entry.reasoning) - EXCERPT_CHARACTERS),
    )


def mark(text: str, quotes: Iterable[str], ranges: Iterable[tuple[int, int]] = ()) -> list[Piece]:
    """Split a text into pieces, marked where a quote occurs or a range lies. Overlapping marks are merged."""
    marked = [(max(0, start), min(len(text), end)) for start, end in ranges if max(0, start) < min(len(text), end)]
    marked += [found.span() for quote in quotes for found in re.finditer(re.escape(quote), text)]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(marked):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    pieces, position = [], 0
    for start, end in merged:
        if start > position:
            pieces.append(Piece(text[position:start]))
        pieces.append(Piece(text[start:end], is_marked=True))
        position = end
    if position < len(text) or not pieces:
        pieces.append(Piece(text[position:]))
    return pieces
