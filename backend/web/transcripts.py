"""A rollout as a page shows it: messages in order, and beside each reply what it earned. All text is untrusted."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backend.domain.environments.tools import Call, CallUnreadable, split_calls

LONG_TEXT = 1500
"""Characters from which a message opens folded."""
MOST_ENTRIES = 120
"""Messages of a conversation that are shown before somebody asks for all."""
MOST_MARKED = 60
"""Of its middle that are shown all the same, because something points at them."""
MOST_CHARACTERS = 20_000
"""Of one message that are shown before somebody asks for all."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text, marked where a detector points at it."""

    text: str
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of one reply that a detector points at, of what was thought before it or said to it afterwards."""

    turn: int
    """Of what was said before the first reply: -1."""
    start: int
    end: int
    part: str = "said"
    """`domain.citations.Part`"""
    quote: str = ""
    """What stands there: several things may be said to the policy in one turn."""


@dataclass(frozen=True, slots=True)
class Earned:
    """One reward column of one step."""

    name: str
    value: float
    worth: float
    """Value times weight: what it does to the reward."""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call that was understood, taken apart."""

    said: str
    """What stands around it in the reply."""
    name: str
    arguments: Mapping[str, Any]
    note: str = ""
    """Why it was not made, where several were asked for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, and for a reply the step that it caused."""

    role: str
    """`system`, `user` (the environment), `assistant` (the policy)."""
    pieces: list[Piece]
    turn: int | None = None
    """Ordinal of the step, for replies."""
    rewards: list[Earned] = field(default_factory=list)
    """Reward columns of the step in the run's order; what carries no weight follows."""
    action: Any = None
    note: str | None = None
    is_done: bool = False
    is_cited: bool = False
    """A flag's evidence points at this turn."""
    timings: Sequence[tuple[str, float]] = ()
    """For a reply: seconds waited, at the policy and in the environment, those that are known."""
    reasoning: str = ""
    """What the policy thought before its answer, where the endpoint tells it."""
    thought: Sequence[Piece] = ()
    """The same in pieces, where something points at it."""
    calls: Sequence[ShownCall] = ()
    """For a reply: the tool calls in it, in their order."""
    not_made: Sequence[ShownCall] = ()
    """For a reply: further calls that it asked for."""
    tool: str = ""
    """For what the environment says: the tool whose result it is."""
    results: Sequence[str] = ()
    """For what the environment says to several calls: each answer."""
    left_out: int = 0
    """Characters at the end that are not shown."""

    @property
    def is_long(self) -> bool:
        return sum(len(piece.text) for piece in self.pieces) > LONG_TEXT

    @property
    def has_marks(self) -> bool:
        return any(piece.is_marked for piece in (*self.pieces, *self.thought))

    @property
    def call(self) -> ShownCall | None:
        """The one call."""
        return self.calls[0] if len(self.calls) == 1 else None


def transcript_of(
    messages: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    weights: Sequence[float] = (),
    quotes: Iterable[str] = (),
    cited_turns: Iterable[int] = (),
    spans: Iterable[Span] = (),
) -> list[Entry]:
    """The conversation as entries: reply number n caused step n. Marked are `spans`, and `quotes` where they occur."""
    wanted = [quote for quote in quotes if quote.strip()]
    by_turn: defaultdict[int, list[tuple[int, int]]] = defaultdict(list, {turn: [] for turn in cited_turns})
    elsewhere: list[Span] = []
    for span in spans:
        if span.part == "said":
            by_turn[span.turn].append((span.start, span.end))
        else:
            elsewhere.append(span)
    weight_of = dict(zip(columns, weights or [1.0] * len(columns), strict=False))
    entries: list[Entry] = []
    turn, tool = 0, ""
    for message in messages or _messages_of(steps):
        text = str(message.get("content") or "")
        if message.get("role") != "assistant":
            role, results = str(message.get("role", "user")), _results(message)
            heard = mark(text, wanted, _in(text, elsewhere, "heard", turn - 1))
            entries.append(Entry(role, heard, tool=tool, results=results))
            tool = ""
            continue
        step = steps[turn] if turn < len(steps) else {}
        pieces = mark(text, wanted, by_turn.get(turn, ()))
        calls = _calls(text, step)
        tool = ", ".join(call.name for call in calls)
        reply = _reply(pieces, step, turn, weight_of, is_cited=turn in by_turn)
        reasoning = str(message.get("reasoning") or "")
        cited = _in(reasoning, elsewhere, "thought", turn)
        thought = mark(reasoning, (), cited) if cited else ()
        shown_calls = () if reply.has_marks else calls
        shown = replace(reply, calls=shown_calls, reasoning=reasoning, thought=thought, not_made=_not_made(message))
        entries.append(shown)
        turn += 1
    return entries


def _in(text: str, spans: Sequence[Span], part: str, turn: int) -> list[tuple[int, int]]:
    """Those of them that lie in this text."""
    own = [span for span in spans if (span.part, span.turn) == (part, turn)]
    return [(span.start, span.end) for span in own if span.quote in ("", text[span.start : span.end])]


def bounded(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """As much of a conversation as a page shows at once, and how many messages are left out of its middle.

    Marked messages stay, and keep their whole text: something points at it.
    """
    shown = [entry if entry.has_marks else _cut(entry) for entry in entries]
    if len(shown) <= MOST_ENTRIES:
        return shown, 0
    half = MOST_ENTRIES // 2
    middle = shown[half:-half]
    marked = [entry for entry in middle if entry.has_marks or entry.is_cited][:MOST_MARKED]
    return [*shown[:half], *marked, *shown[-half:]], len(middle) - len(marked)


def _cut(entry: Entry) -> Entry:
    text = entry.pieces[0].text if entry.pieces else ""
    if len(text) <= MOST_CHARACTERS and len(entry.reasoning) <= MOST_CHARACTERS:
        return entry
    left_out = max(0, len(text) - MOST_CHARACTERS) + max(0, len(entry.reasoning) - MOST_CHARACTERS)
    pieces = [Piece(text[:MOST_CHARACTERS])]
    return replace(entry, pieces=pieces, reasoning=entry.reasoning[:MOST_CHARACTERS], left_out=left_out, calls=())


def _calls(text: str, step: Mapping[str, Any]) -> list[ShownCall]:
    """The calls in a reply, where they were also understood as such: any text may look like a call."""
    try:
        before, calls, after = split_calls(text)
    except CallUnreadable:
        return []
    made = step.get("calls")
    outcomes = made if isinstance(made, list) and len(made) == len(calls) else [step]
    if len(outcomes) != len(calls) or not _is_meant(calls[0], step.get("action")):
        return []
    said = f"{before.strip()}\n{after.strip()}".strip()
    notes = [str(outcome.get("note") or "") if len(calls) > 1 else "" for outcome in outcomes]
    return [
        ShownCall("" if number else said, call.name, call.arguments, note)
        for number, (call, note) in enumerate(zip(calls, notes, strict=True))
    ]


def _results(message: Mapping[str, Any]) -> list[str]:
    results = message.get("results")
    return [str(result) for result in results] if isinstance(results, list) and len(results) > 1 else []


def _not_made(message: Mapping[str, Any]) -> list[ShownCall]:
    calls = message.get("not_made") or ()
    return [
        ShownCall("", str(call["name"]), call["arguments"]) for call in calls if isinstance(call["arguments"], dict)
    ]


def _is_meant(call: Call, action: Any) -> bool:
    values = list(action.values()) if isinstance(action, Mapping) else []
    return call.name in values and call.arguments in values


def _reply(
    pieces: list[Piece], step: Mapping[str, Any], turn: int, weight_of: Mapping[str, float], *, is_cited: bool
) -> Entry:
    sent = step.get("rewards") or {}
    names = [name for name in weight_of if name in sent] + sorted(set(sent) - set(weight_of))
    return Entry(
        role="assistant",
        pieces=pieces,
        turn=turn,
        rewards=[Earned(name, sent[name], sent[name] * weight_of.get(name, 0.0)) for name in names],
        action=step.get("action"),
        note=step.get("note"),
        is_done=bool(step.get("done")),
        is_cited=is_cited,
        timings=_timings(step),
    )


SHORTEST_TIMING = 0.0005
"""Seconds; less is shown as nothing, it would read as 0 ms."""


def _timings(step: Mapping[str, Any]) -> list[tuple[str, float]]:
    known = (("waited", "queue_seconds"), ("policy", "policy_seconds"), ("environment", "environment_seconds"))
    values = [(name, step.get(key)) for name, key in known]
    return [
        (name, float(value)) for name, value in values if isinstance(value, int | float) and value >= SHORTEST_TIMING
    ]


def _messages_of(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For records without messages: replies and observations take turns."""
    messages: list[dict[str, Any]] = []
    for step in steps:
        messages.append({"role": "assistant", "content": step.get("reply", "")})
        if step.get("text"):
            messages.append({"role": "user", "content": step["text"]})
    return messages


def mark(text: str, quotes: Sequence[str], spans: Iterable[tuple[int, int]] = ()) -> list[Piece]:
    """Split the text where a quote occurs or a span lies. What overlaps becomes one mark."""
    inside = [(max(0, start), min(len(text), end)) for start, end in spans if max(0, start) < min(len(text), end)]
    found = [span for quote in quotes for span in _occurrences(text, quote)]
    pieces, position = [], 0
    for start, end in _merged(sorted(inside + found)):
        if start > position:
            pieces.append(Piece(text[position:start]))
        pieces.append(Piece(text[start:end], is_marked=True))
        position = end
    if position < len(text) or not pieces:
        pieces.append(Piece(text[position:]))
    return pieces


def _occurrences(text: str, quote: str) -> Iterable[tuple[int, int]]:
    start = text.find(quote)
    while start >= 0:
        yield start, start + len(quote)
        start = text.find(quote, start + len(quote))


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
