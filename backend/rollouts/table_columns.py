"""The columns of a table of rollouts: which there are, which are shown, and what stands in them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from backend.domain.graders.settings import QUESTION_PREFIX
from backend.domain.vocabulary import RunKind
from backend.rollouts.filter_fields import FilterScope, is_reserved
from backend.rollouts.queries import Listed
from backend.runs.tables import Run

_PLAIN = {
    "seq": "no.",
    "split": "split",
    "member": "member",
    "level": "level",
    "phase": "phase",
    "step": "step",
    "advantage": "advantage",
    "turns": "turns",
    "tokens": "tokens",
    "tokens_in": "tokens read",
    "seconds": "seconds",
    "policy_seconds": "policy s",
    "environment_seconds": "environment s",
    "queue": "waited s",
    "cost": "cost $",
    "attempts": "attempts",
    "truncated": "truncated",
    "demonstration": "demonstration",
    "flag": "flags",
    "verdict": "verdict",
}
_WORDS = frozenset({"split", "phase", "truncated", "demonstration", "flag", "verdict"})
_RENAMED = {"tokens": "tokens_out", "step": "training_step", "queue": "queue_seconds"}
_UNSORTED = frozenset({"excerpt", "id"})


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table; its key is also what to sort by."""

    key: str
    label: str
    is_number: bool = False
    is_sortable: bool = True


def all_columns(scope: FilterScope) -> list[Column]:
    """Every column that this run's table may show, in order."""
    return list(_columns(scope))


def _columns(scope: FilterScope) -> Iterator[Column]:
    yield Column("task", "task")
    yield from (_plain(key) for key in ("seq", "split", "member", "level", "phase", "step"))
    yield Column("reward", "reward", is_number=True)
    yield from (Column(key_of(name), name, is_number=True) for name in scope.run.columns)
    yield from (Column(f"metric.{name}", name, is_number=True) for name in scope.metrics)
    yield from (Column(f"judge.{name}", f"judge {name}", is_number=True) for name in scope.judges)
    for name, asked in scope.questions.items():
        yield Column(f"{QUESTION_PREFIX}{name}", name.replace("_", " "), is_number=asked.is_number)
    yield from (_plain(key) for key in list(_PLAIN)[6:])
    yield Column("status", "ended by")
    yield Column("excerpt", "last words", is_sortable=False)
    yield Column("id", "id", is_sortable=False)


def _plain(key: str) -> Column:
    return Column(key, _PLAIN[key], is_number=key not in _WORDS)


def key_of(name: str) -> str:
    """A reward column's name as a field of filters and orders."""
    return f"column.{name}" if is_reserved(name) else name


def shown_columns(scope: FilterScope, chosen: str | None) -> list[Column]:
    """The chosen ones that there are; where none is chosen, what one wants to see first."""
    wanted = [key for key in (chosen or "").split(",") if key] or default_keys(scope.run)
    by_key = {column.key: column for column in all_columns(scope)}
    shown = [by_key[key] for key in wanted if key in by_key]
    return shown or [by_key[key] for key in default_keys(scope.run)]


def default_keys(run: Run) -> list[str]:
    is_training = run.kind is RunKind.TRAINING
    middle = ["phase", "step"] if is_training else []
    after = ["advantage"] if is_training else []
    return [
        *("task", "level", *middle, "reward", *map(key_of, run.columns), *after),
        *("turns", "tokens", "status", "excerpt"),
    ]


def value_of(item: Listed, key: str) -> Any:
    """What a column holds for one rollout, as plain data."""
    rollout, task = item.rollout, item.rollout.group.task
    match key.split(".", 1):
        case ["metric", name]:
            return rollout.metrics.get(name)
        case ["judge", name]:
            return item.scores.get(name)
        case ["question", name]:
            return item.answers.get(name)
        case ["column", name]:
            return item.columns.get(name)
        case ["task"]:
            return f"{task.split}/{task.index}"
        case ["split"]:
            return str(task.split)
        case ["seconds"]:
            return rollout.policy_seconds + rollout.environment_seconds
        case ["truncated" | "demonstration"]:
            return rollout.is_truncated if key == "truncated" else rollout.is_demonstration
        case ["flag"]:
            return list(item.flags)
        case ["verdict"]:
            return item.verdict
        case ["status"]:
            return str(rollout.stop_reason or rollout.status)
        case _ if key in item.columns and not is_reserved(key):
            return item.columns[key]
        case _:
            return getattr(rollout, _RENAMED.get(key, key), None)
