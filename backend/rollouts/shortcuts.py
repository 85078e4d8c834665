"""Choices beside the filter box: each writes one clause into the expression."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.domain.rollouts.fields import GROUP_KINDS
from backend.domain.rollouts.filters import clauses_of, subject_of
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, StopReason, Verdict
from backend.rollouts.scope import FilterScope


@dataclass(frozen=True, slots=True)
class Shortcut:
    """One choice: options are (clause, label), the empty clause takes it back."""

    field: str
    label: str
    options: Sequence[tuple[str, str]]
    chosen: str
    """The clause in the expression, where it is one of the options."""


def shortcuts(scope: FilterScope, expression: str) -> list[Shortcut]:
    statuses = (RolloutStatus.COMPLETED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)
    flags = [("has flag", "flagged"), ("not has flag", "not flagged")]
    flags += [(f"flag = {name}", name.replace("_", " ")) for name in scope.fields["flag"].choices]
    offered = [
        ("status", "Status", "any", _equal("status", statuses)),
        ("phase", "Phase", "all", _equal("phase", Phase)) if scope.run.kind is RunKind.TRAINING else None,
        ("stop_reason", "Ended by", "anything", _equal("stop_reason", StopReason)),
        ("flag", "Flags", "all", flags),
        (
            "verdict",
            "Verdict",
            "all",
            [("has verdict", "judged"), ("not has verdict", "not judged"), *_equal("verdict", Verdict)],
        ),
        ("group", "Group", "all", _equal("group", GROUP_KINDS)),
    ]
    clauses = {subject_of(clause): clause for clause in clauses_of(expression) or ()}
    return [_shortcut(*each, clauses.get(each[0], "")) for each in offered if each]


def _shortcut(field: str, label: str, everything: str, options: Sequence[tuple[str, str]], clause: str) -> Shortcut:
    known = {_plain(option): option for option, _ in options}
    return Shortcut(field, label, [("", everything), *options], known.get(_plain(clause), ""))


def _equal(field: str, values: Iterable[str]) -> list[tuple[str, str]]:
    return [(f"{field} = {value}", str(value).replace("_", " ")) for value in values]


def _plain(clause: str) -> str:
    return " ".join(clause.lower().split())
