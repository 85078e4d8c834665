"""A filter gives the rollouts that Python picks by the same expression; an order is the order that Python sorts in."""

import random
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy.orm import Session

from backend.domain.graders.settings import GraderKind
from backend.domain.rollouts.fields import FIELDS, MEASURED, Field, FieldKind
from backend.domain.rollouts.filters import And, Comparison, Has, Node, Not, Or, field_name, parse
from backend.domain.text import quoted
from backend.domain.vocabulary import GradeStatus, Phase, Verdict
from backend.graders.tables import Grade, Grader
from backend.review.tables import VerdictRecord
from backend.rollouts import queries
from backend.rollouts.filters import select_rollouts
from backend.rollouts.queries import MatchCount, count_rollouts, list_rollouts, matching
from backend.rollouts.scope import FilterScope, scope_of
from backend.rollouts.tables import Rollout
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from backend.web.filters import WrongFilter
from tests.factories import add_group, add_rollout, make_flag, make_group, make_policy, make_rollout, make_run
from workers.tasks.housekeeping import add_texts

GROUPS = 24
WORDS = ("the centre", "A corner", "100% sure", "back\\slash", 'a "quote"', "naïve", "under_score", "two\nlines")
HAIR = 1e-6


def count(session: Session, run: Run, where: str) -> int:
    return count_rollouts(session, select_rollouts(scope_of(session, run), where))


@dataclass
class Known:
    """What Python knows of one rollout: values by field, detectors that flagged it."""

    rollout: Rollout
    values: dict[str, Any]
    flags: set[str] = field(default_factory=set)


@pytest.fixture
def run(request: pytest.FixtureRequest, session: Session) -> Run:
    """A list of an ended run is kept in memory, one of a run that grows is searched in Postgres."""
    return make_run(session) if getattr(request, "param", "growing") == "ended" else make_run(session, ended_at=None)


kept_and_searched = pytest.mark.parametrize("run", ["ended", "growing"], indirect=True)


@pytest.fixture
def known(session: Session, run: Run) -> list[Known]:
    """Rollouts of every kind, some with flags, verdicts and grades."""
    dice = random.Random(3)
    judge = Grader(name="strict one", kind=GraderKind.JUDGE, policy_id=make_policy(session).id, settings={})
    session.add(judge)
    session.flush()
    drawn = []
    with session.no_autoflush:
        for number in range(GROUPS):
            step = dice.choice([None, 1, 2])
            phase = Phase.HELDOUT if step else Phase.TRAIN if dice.random() < 0.5 else Phase.EVALUATION
            group = add_group(session, run, index=number, phase=phase, step=step)
            same = [1.0, 1.0, 0.0] if dice.random() < 0.3 else None
            for member in range(3):
                row = same or (
                    None if dice.random() < 0.2 else [dice.choice([0.0, 0.5, 1.0]), 0.1 * dice.randrange(9), 1.0]
                )
                fields = _fields(dice, failed=row is None)
                drawn.append((add_rollout(session, run, group, row, member, fields), group, row))
    session.flush()
    made = [Known(rollout, _values(rollout, group, row)) for rollout, group, row in drawn]
    for each in made:
        _judge(session, run, judge, dice, each)
    _compare_groups(made)
    return made


def _fields(dice: random.Random, *, failed: bool) -> dict[str, Any]:
    said = dice.choice(WORDS)
    return {
        **{
            name: dice.choice([0, 100, 200, 300]) if each.is_whole else dice.choice([0.0, 0.3])
            for name, each in MEASURED.items()
        },
        "turns": dice.randrange(1, 5),
        "is_truncated": dice.random() < 0.3,
        "is_demonstration": dice.random() < 0.2,
        "cost": dice.choice([None, 0.1, 0.25]),
        "advantage": None if failed else dice.choice([-0.5, 0.0, 0.5]),
        "metrics": dice.choice([{}, {"guesses": dice.randrange(4)}, {"guesses": "many"}]),
        "messages": [{"role": "user", "content": "Board?"}, {"role": "assistant", "content": f"I take {said} now"}],
    }


def _values(rollout: Rollout, group: Any, row: Any) -> dict[str, Any]:
    columns = dict(zip(("win", "format", "invalid_move"), row or (None,) * 3, strict=True))
    guesses = rollout.metrics.get("guesses")
    said = "\n".join(message["content"] for message in rollout.messages)
    return {
        **{each.name: _stored(rollout, each) for each in FIELDS.values() if each.stored},
        **columns,
        **{f"column.{name}": value for name, value in columns.items()},
        **dict.fromkeys(("guesses", "metric.guesses"), guesses if isinstance(guesses, int) else None),
        "tokens": rollout.tokens_out,
        "step": rollout.training_step,
        "task": group.task.index,
        "split": str(group.task.split),
        "seconds": rollout.policy_seconds + rollout.environment_seconds,
        "queue": rollout.queue_seconds,
        "truncated": rollout.is_truncated,
        "demonstration": rollout.is_demonstration,
        "text": said,
        "error": rollout.error_message,
        "verdict": None,
    }


def _stored(rollout: Rollout, of: Field) -> Any:
    values = [getattr(rollout, name) for name in of.stored]
    if len(values) > 1:
        return sum(values)
    return str(values[0]) if isinstance(values[0], StrEnum) else values[0]


def _judge(session: Session, run: Run, judge: Grader, dice: random.Random, made: Known) -> None:
    made.flags = {name for name in ("repeated_text", "early_exit") if dice.random() < 0.2}
    scores = []
    for detector in sorted(made.flags):
        scores.append(dice.choice([0.25, 0.5, 0.75]))
        make_flag(session, run, made.rollout, detector=detector, score=scores[-1])
    made.values["flag"] = max(scores, default=None)
    for verdict in dice.choice([[], [], [Verdict.HONEST], [Verdict.HACK, Verdict.HONEST], [Verdict.HACK]]):
        session.add(VerdictRecord(run_id=run.id, rollout_id=made.rollout.id, verdict=verdict))
        session.flush()
        made.values["verdict"] = str(verdict)
    score = dice.choice([None, 0.0, 0.3, 1.0])
    made.values["judge.strict one"] = score
    if score is not None or dice.random() < 0.5:
        status = GradeStatus.FAILED if score is None else GradeStatus.COMPLETED
        keys = {"grader_id": judge.id, "run_id": run.id, "rollout_id": made.rollout.id}
        session.add(Grade(**keys, status=status, score=score))


def _compare_groups(made: list[Known]) -> None:
    rewards = [each.rollout.reward for each in made if each.rollout.reward is not None]
    middle = (min(rewards) + max(rewards)) / 2
    groups: defaultdict[Any, list[Known]] = defaultdict(list)
    for each in made:
        groups[each.rollout.group_id].append(each)
    for members in groups.values():
        own = [each.rollout.reward for each in members if each.rollout.reward is not None]
        kind = None
        if len(own) > 1:
            kind = "mixed" if max(own) - min(own) > HAIR else "all_good" if min(own) >= middle else "all_bad"
        for each in members:
            each.values["group"] = kind


def holds(node: Node, known: Known) -> bool:
    """The same as the database should say."""
    match node:
        case Not(part):
            return not holds(part, known)
        case And(parts):
            return all(holds(part, known) for part in parts)
        case Or(parts):
            return any(holds(part, known) for part in parts)
        case Has(Field(name="flag")):
            return bool(known.flags)
        case Has(asked):
            if asked.name in {"group", "split", "task", "text"}:
                return True
            value = known.values[asked.name]
            return value is True if asked.kind is FieldKind.YES_NO else value is not None
        case Comparison(asked, "!=", values):
            return not holds(Comparison(asked, "=", values), known)
        case Comparison(Field(name="flag"), operator, values):
            return any(_fits(detector, operator, values) for detector in known.flags)
        case Comparison(asked, operator, values):
            value = known.values[asked.name.replace("metric.", "")]
            return value is not None and _fits(value, operator, values, exact=asked.is_whole)


def _fits(value: Any, operator: str, values: tuple[Any, ...], *, exact: bool = False) -> bool:
    if operator == "~":
        return str(values[0]).lower() in value.lower()
    if operator == "in":
        return any(_fits(value, "=", (each,), exact=exact) for each in values)
    wanted = values[0]
    if isinstance(wanted, str | bool):
        return bool(value == wanted)
    hair = 0 if exact else abs(wanted) * HAIR
    asked = {
        "=": wanted - hair <= value <= wanted + hair,
        "<": value < wanted - hair,
        "<=": value <= wanted + hair,
        ">": value > wanted + hair,
        ">=": value >= wanted - hair,
    }
    return asked[operator]


def _random_expression(dice: random.Random, scope: FilterScope, depth: int = 0) -> str:
    roll = dice.random()
    if depth < 3 and roll < 0.45:
        joined = f" {dice.choice(['and', 'or'])} ".join(
            _random_expression(dice, scope, depth + 1) for _ in range(dice.randrange(2, 4))
        )
        return f"({joined})" if dice.random() < 0.6 else joined
    if depth < 4 and roll < 0.6:
        return f"not {_random_test(dice, scope)}"
    return _random_test(dice, scope)


def _random_test(dice: random.Random, scope: FilterScope) -> str:
    asked = scope.fields[dice.choice(sorted(scope.fields))]
    name = field_name("judge", asked.name[6:]) if asked.name.startswith("judge.") else asked.name
    if dice.random() < 0.15:
        return f"has {name}"
    match asked.kind:
        case FieldKind.NUMBER:
            operator = dice.choice(["=", "!=", "<", "<=", ">", ">="])
            number = dice.choice([0, 0.1, 0.25, 0.3, 0.5, 1, 2, 3, 100, 200, -0.5])
            return f"{name} in ({number}, 1)" if dice.random() < 0.1 else f"{name} {operator} {number}"
        case FieldKind.CHOICE:
            return f"{name} {dice.choice(['=', '!='])} {dice.choice(asked.choices)}"
        case FieldKind.WORD:
            return dice.choice(["flag = early_exit", "flag != early_exit", "flag ~ repeat", "flag in (early_exit, x)"])
        case FieldKind.YES_NO:
            return dice.choice([name, f"{name} = no", f"{name} != yes"])
        case _:
            return f"{name} ~ {quoted(dice.choice((*WORDS, 'fire', 'nothing', '%')))}"


@pytest.mark.slow
@pytest.mark.parametrize("indexed", ["indexed", "fresh"])
def test_every_filter_gives_what_python_picks(session: Session, run: Run, known: list[Known], indexed: str) -> None:
    if indexed == "indexed":
        index_all(session, run)
    scope = scope_of(session, run)
    dice = random.Random(11)
    for _ in range(150):
        expression = _random_expression(dice, scope)
        tree = parse(expression, scope.fields)
        assert tree is not None
        wanted = {each.rollout.id for each in known if holds(tree, each)}
        assert set(session.scalars(matching(session, run, expression))) == wanted, expression


@pytest.mark.slow
@kept_and_searched
def test_every_order_is_pythons_with_those_without_a_value_last(session: Session, run: Run, known: list[Known]) -> None:
    scope = scope_of(session, run)
    by_id = {each.rollout.id: each for each in known}
    for name in scope.sortable:
        for sort in (name, f"-{name}"):
            found = list_rollouts(session, run, RolloutFilter(sort=sort, limit=500), scope).items
            assert len(found) == len(known)
            values = [_sort_value(by_id[item.rollout.id], name) for item in found]
            there = [value for value in values if value is not None]
            assert values[len(there) :] == [None] * (len(values) - len(there)), sort
            assert there == sorted(there, reverse=sort.startswith("-")), sort


def _sort_value(known: Known, name: str) -> Any:
    value = known.values[name]
    return struct.unpack("f", struct.pack("f", value))[0] if isinstance(value, float) else value


@kept_and_searched
@pytest.mark.slow
def test_pages_lead_there_and_back_again(session: Session, run: Run, known: list[Known]) -> None:
    for sort in ("seq", "-reward", "win", "-status", "task", "flag", "-judge.strict one", "guesses"):
        there, back, whole = _walked(session, run, sort)
        assert there == back == whole, sort


def _walked(session: Session, run: Run, sort: str) -> tuple[list[Any], list[Any], list[Any]]:
    """The rollouts from page to page, backwards from the end, and in one piece."""
    whole = [item.rollout.id for item in list_rollouts(session, run, RolloutFilter(sort=sort, limit=500)).items]
    there, back = [], []
    part = list_rollouts(session, run, RolloutFilter(sort=sort, limit=17))
    assert part.previous is None
    while True:
        there += [item.rollout.id for item in part.items]
        if part.next is None:
            break
        part = list_rollouts(session, run, RolloutFilter(sort=sort, limit=17, after=part.next))
    part = list_rollouts(session, run, RolloutFilter(sort=sort, limit=17, before="end"))
    assert part.next is None
    while True:
        back = [item.rollout.id for item in part.items] + back
        if part.previous is None:
            break
        part = list_rollouts(session, run, RolloutFilter(sort=sort, limit=17, before=part.previous))
    return there, back, whole


@kept_and_searched
@pytest.mark.slow
def test_what_is_counted_in_the_same_look_is_the_same_list(session: Session, run: Run, known: list[Known]) -> None:
    for where in ("guesses >= 0 or text ~ centre", "has flag or win = 1", "group = mixed and turns > 0"):
        for sort in ("-seq", "reward", "task", "-judge.strict one"):
            _count_beside(session, run, where, sort)


def _count_beside(session: Session, run: Run, where: str, sort: str) -> None:
    """From page to page in both directions."""
    scope = scope_of(session, run)
    wanted = RolloutFilter(where=where, sort=sort, limit=9)
    for asked in (wanted, wanted.model_copy(update={"before": "end"})):
        while True:
            queries._counts.values.clear()
            part = list_rollouts(session, run, asked, scope, counts=True)
            plain = list_rollouts(session, run, asked, scope)
            assert [item.rollout.id for item in part.items] == [item.rollout.id for item in plain.items]
            assert (part.next, part.previous) == (plain.next, plain.previous)
            assert part.matching == MatchCount(count_rollouts(session, select_rollouts(scope, where)))
            further = {"before": part.previous} if asked.before else {"after": part.next}
            if None in further.values():
                break
            asked = wanted.model_copy(update=further)


@pytest.mark.slow
def test_what_was_said_is_counted_up_to_a_bound(
    session: Session, run: Run, known: list[Known], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_COUNTED_BY_TEXT", 5)
    wanted = RolloutFilter(where="text ~ board", limit=3)
    found = list_rollouts(session, run, wanted, scope_of(session, run), counts=True)
    assert found.matching == MatchCount(5, is_more=True)


@kept_and_searched
def test_a_filter_with_an_order_keeps_both(session: Session, run: Run, known: list[Known]) -> None:
    wanted = RolloutFilter(where="has flag or win = 1", status="completed", sort="-tokens", limit=500)
    found = [item.rollout for item in list_rollouts(session, run, wanted).items]
    assert all(rollout.status == "completed" for rollout in found)
    assert len(found) == count(session, run, wanted.expression) < count(session, run, "")
    assert [rollout.tokens_out for rollout in found] == sorted((row.tokens_out for row in found), reverse=True)


@kept_and_searched
@pytest.mark.slow
def test_every_order_goes_with_every_kind_of_filter(session: Session, run: Run, known: list[Known]) -> None:
    scope = scope_of(session, run)
    where = (
        'has flag or verdict = hack or judge."strict one" > 0 or task < 9 or group = mixed or text ~ x or guesses = 1'
    )
    tree = parse(where, scope.fields)
    assert tree is not None
    wanted = {each.rollout.id for each in known if holds(tree, each)}
    for name in scope.sortable:
        found = list_rollouts(session, run, RolloutFilter(where=where, sort=name, limit=500), scope).items
        assert {item.rollout.id for item in found} == wanted, name


def test_rollouts_of_other_runs_never_pass(session: Session, run: Run, known: list[Known]) -> None:
    other = make_run(session, run.version)
    group = make_group(session, other)
    make_rollout(session, other, group, [1, 1, 0])
    assert count(session, other, "not has flag and reward > 0") == 1
    assert count(session, run, "reward > -100") == sum(each.rollout.reward is not None for each in known)


@pytest.mark.parametrize(
    "hostile",
    ["wn = 1", "judge.nobody > 0", "password = 1", "win = 1; drop table rollouts", "text ~ ''", "judge. = 1", "(" * 50],
)
def test_what_cannot_be_understood_is_refused_with_its_place(session: Session, run: Run, hostile: str) -> None:
    with pytest.raises(WrongFilter) as caught:
        matching(session, run, hostile)
    assert "at character" in caught.value.fields["where"]
    assert caught.value.place.start < caught.value.place.stop


@pytest.mark.parametrize(
    "text", ["'; drop table rollouts; --", "%", "_", "\\", "\u202e\U0001f600", "a" * 450, "{}[]$1 :x"]
)
def test_hostile_text_is_only_looked_for(session: Session, run: Run, known: list[Known], text: str) -> None:
    expression = f"text ~ {quoted(text)} or error ~ {quoted(text)} or flag = {quoted(text)} or metric.{'x' * 90} = 1"
    wanted = [each for each in known if text.lower() in each.values["text"].lower()]
    assert count(session, run, expression) == len(wanted)


def test_numbers_as_large_as_they_come_are_compared(session: Session, run: Run, known: list[Known]) -> None:
    assert count(session, run, "tokens < 1e300 and reward > -1e300") > 0
    assert count(session, run, "reward = 1e300 or level = 99999999999999999999") == 0


def index_all(session: Session, run: Run) -> None:
    """What housekeeping does, in this transaction."""
    while add_texts(session, run.id, scope_of(session, run).indexed):
        pass
