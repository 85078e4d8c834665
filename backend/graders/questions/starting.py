"""Asking a question about a part of a run: which rollouts that are, how many, and about what it will cost."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy import Select, cast, func, literal, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session, undefer

from backend.core.tables import Job
from backend.domain.graders.judge_prompts import Facts
from backend.domain.graders.question_prompts import Shown, asked_about, contrasted, demands
from backend.domain.graders.questions import QuestionConfiguration, QuestionKind
from backend.domain.policies.prices import cost_of
from backend.errors import Conflict, InvalidInput
from backend.graders.contrasts import Scene, scenes
from backend.graders.questions.flagging import raise_flags
from backend.graders.questions.queries import configuration_of, get_question
from backend.graders.questions.service import MOST_TRIED, find_asking, start_asking, stop_asking, try_question
from backend.graders.rollout_choice import completed_rollouts, count_of, still_without, told_nothing
from backend.graders.tables import Asking, Question, QuestionAnswer
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.web.audit import audit

if TYPE_CHECKING:  # workers count rollouts too, and never load the web
    from backend.web.identity import Actor

SAMPLED = 24
"""Rollouts by which the length of a request is foreseen."""
CHARACTERS_A_TOKEN = 4
"""A rule of thumb for English."""
WRITTEN = 250
"""Tokens of an answer, where none was given yet."""
_THOUGHT = '$[*].reasoning ? (@ != "")'
NO_REASONING = (
    "No completed rollout here has reasoning text. The monitor reads what a policy thought where that is kept apart "
    "from its answer; this policy or its endpoint does not tell it."
)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What asking will take."""

    count: int
    """Requests about rollouts, or about groups of a contrast; what is answered already is not asked again."""
    answered: int
    tokens_in: float | None
    tokens_out: float | None
    cost: float | None
    """US dollars with the canaries; None without a price."""
    basis: str
    """By what it is foreseen, in words."""
    problem: str = ""
    """Why there is nothing to ask about."""


def asked_rollouts(session: Session, run: Run, asked: QuestionConfiguration, where: str) -> Select[uuid.UUID]:
    """Ids of the completed rollouts that it is asked about. Raises InvalidInput where the filter cannot be read."""
    wanted = completed_rollouts(session, run, where)
    if asked.kind is QuestionKind.MONITOR:
        wanted = wanted.where(func.jsonb_path_exists(Rollout.messages, cast(literal(_THOUGHT), JSONPATH)))
    return wanted


def outlook(session: Session, run: Run, question: Question, where: str, cluster: str = "") -> Outlook:
    asked = configuration_of(question)
    if asked.kind is QuestionKind.CONTRAST:
        found = scenes(session, run, asked.each, where, cluster)
        problem = "" if found else "No group here has members that earned differently."
        return _foreseen(question, len(found), 0, _of_scenes(session, asked, found[:4]), problem)
    wanted = asked_rollouts(session, run, asked, where)
    all_wanted = count_of(session, wanted)
    waiting = count_of(session, still_without(wanted, QuestionAnswer, question.id))
    if not all_wanted:
        return _foreseen(question, 0, 0, None, _nothing(asked, where))
    spent = _spent_before(session, question.id) or _of_prompts(session, asked, wanted)
    return _foreseen(question, waiting, all_wanted - waiting, spent, "")


def start(
    session: Session, actor: Actor, run: Run, question_id: uuid.UUID, where: str = "", cluster: str = ""
) -> Asking:
    """Raises InvalidInput where the filter cannot be read or nothing passes it."""
    question = get_question(session, question_id)
    _refuse_nothing(session, run, question, where, cluster)
    return start_asking(session, actor, run, question, where, cluster)


def stop(session: Session, actor: Actor, run: Run, question_id: uuid.UUID) -> Asking:
    return stop_asking(session, actor, run, get_question(session, question_id))


def try_out(session: Session, actor: Actor, run: Run, question_id: uuid.UUID, where: str = "") -> Job:
    """On three of the rollouts that it would be asked about, spread over them; of a contrast on the first group."""
    question = get_question(session, question_id)
    _refuse_nothing(session, run, question, where, "")
    asked = configuration_of(question)
    if asked.kind is QuestionKind.CONTRAST:
        scene = scenes(session, run, asked.each, where)[0]
        return try_question(session, actor, question, [*scene.high[:1], *scene.low[:1]])
    ids = session.scalars(asked_rollouts(session, run, asked, where).order_by(Rollout.seq)).all()
    return try_question(session, actor, question, _spread(ids, MOST_TRIED))


def _spread(ids: Sequence[uuid.UUID], most: int) -> list[uuid.UUID]:
    """First, middle and last."""
    if len(ids) <= most:
        return list(ids)
    return [ids[round(place * (len(ids) - 1) / (most - 1))] for place in range(most)]


def _refuse_nothing(session: Session, run: Run, question: Question, where: str, cluster: str) -> None:
    asked = configuration_of(question)
    if asked.kind is QuestionKind.CONTRAST:
        if not scenes(session, run, asked.each, where, cluster):
            raise InvalidInput(fields={"where": "No group here has members that earned differently."})
    elif not count_of(session, asked_rollouts(session, run, asked, where)):
        told = _nothing(asked, where)
        raise InvalidInput(told, fields={"where": told})


def _nothing(asked: QuestionConfiguration, where: str) -> str:
    if asked.kind is QuestionKind.MONITOR:
        return NO_REASONING
    return told_nothing(where)


@dataclass(frozen=True, slots=True)
class _Spent:
    """Of one request."""

    tokens_in: float
    tokens_out: float
    basis: str


def _spent_before(session: Session, question_id: uuid.UUID) -> _Spent | None:
    figures = select(func.count(), func.avg(QuestionAnswer.tokens_in), func.avg(QuestionAnswer.tokens_out))
    count, tokens_in, tokens_out = session.execute(figures.where(QuestionAnswer.question_id == question_id)).one()
    if not count or not tokens_in:
        return None
    return _Spent(float(tokens_in), float(tokens_out), f"what its {count:,} answers took")


def _of_prompts(session: Session, asked: QuestionConfiguration, wanted: Select[uuid.UUID]) -> _Spent:
    """By the length of the requests about some of them, at four characters a token."""
    ids = _spread(session.scalars(wanted.order_by(Rollout.seq)).all(), SAMPLED)
    lengths = [_length(asked_about(asked, facts).messages) for facts in _facts(session, ids)]
    return _by_length(lengths)


def _of_scenes(session: Session, asked: QuestionConfiguration, found: Sequence[Scene]) -> _Spent | None:
    lengths = []
    for scene in found:
        shown = [Shown(facts, is_high=True) for facts in _facts(session, [*scene.high, *scene.low])]
        lengths.append(_length(contrasted(asked, shown, 0).question.messages))
    return _by_length(lengths) if lengths else None


def _by_length(lengths: Sequence[int]) -> _Spent:
    mean = sum(lengths) / len(lengths)
    return _Spent(mean / CHARACTERS_A_TOKEN, WRITTEN, f"the length of {len(lengths):,} requests")


def _facts(session: Session, ids: Sequence[uuid.UUID]) -> list[Facts]:
    rows = session.scalars(select(Rollout).options(undefer(Rollout.messages)).where(Rollout.id.in_(ids)))
    return [Facts(rollout.messages) for rollout in rows]


def _length(messages: Sequence[dict[str, object]]) -> int:
    return sum(len(str(message["content"])) for message in messages)


def _foreseen(question: Question, count: int, answered: int, spent: _Spent | None, problem: str) -> Outlook:
    if spent is None or not count:
        return Outlook(count, answered, None, None, None, "", problem)
    canaries = len(demands(configuration_of(question)))
    tokens_in, tokens_out = spent.tokens_in * (count + canaries), spent.tokens_out * (count + canaries)
    try:
        cost = cost_of(question.policy.configuration.get("price"), round(tokens_in), round(tokens_out))
    except ValidationError:  # stored by something older; then it is as good as none
        cost = None
    return Outlook(count, answered, tokens_in, tokens_out, cost, spent.basis, problem)


def turn_into_flags(session: Session, actor: Actor, run: Run, question_id: uuid.UUID, answers: Sequence[str]) -> int:
    """Stored answers become flags: of a question those named here, else those that it names itself."""
    question = get_question(session, question_id)
    asked = configuration_of(question)
    if asked.kind is QuestionKind.CONTRAST:
        raise Conflict("A contrast raises its flags by itself.")
    asking = find_asking(session, run.id, question.id)
    if asking is not None and (asking.canaries or {}).get("is_injectable"):
        raise Conflict("Who answered does as the data says, so these answers raise no flags.")
    if unknown := [answer for answer in answers if answer not in asked.choices]:
        raise InvalidInput(fields={"answers": f"No answer is called {', '.join(unknown)[:100]}."})
    if asked.kind is QuestionKind.QUESTION and not (answers or asked.flags):
        raise InvalidInput(fields={"answers": f"Name an answer: {', '.join(asked.choices)}."})
    new = raise_flags(session, run.id, question, answers=answers)
    audit(session, actor, "question.flag", "run", run.id, question=question.name, flags=new)
    return new
