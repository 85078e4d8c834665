"""Made-up rows for viewing pages: graders, questions, onset and effort studies."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.graders.settings import Criterion, GraderKind, JudgeScale
from backend.domain.ids import new_id
from backend.domain.studies.effort import ReplyCurve, area_under, conclude_effort, cut_points
from backend.domain.vocabulary import RunStatus
from backend.graders.tables import GraderRun
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, Study, StudyCheckpoint
from tests import factories
from tests.graders.asked import GAVE_UP, STAYED, cited, make_answer, make_asked_run, make_question
from tests.graders.conftest import make_judge, make_judgement
from tests.studies.worlds import judged, make_effort_study, make_sampled_onset_study, make_training

FRACTIONS = cut_points(11)


def make_judging_rows(session: Session) -> dict[str, str]:
    """`{scored}` has effort studies, `{onset}` an onset study, `{asked}` the work of `{judge}` and `{question}`."""
    onset = make_training(session)
    judged(session, onset, (55, 70))
    factories.make_points(session, onset, "reward", {step: step / 100 for step in range(1, 81)})
    make_sampled_onset_study(session, onset)
    asked = make_asked_run(session, [GAVE_UP, STAYED, None, STAYED, STAYED, GAVE_UP])
    return {"scored": str(_scored(session).id), "onset": str(onset.id), "asked": str(asked.id)} | _asked(session, asked)


def _scored(session: Session) -> Run:
    """Three studies: one in progress, one suspicious, one that was stopped."""
    run = make_training(session, (10, 20, 40), name="grid-mini: GRPO with reasoning")
    stopped = _score(session, run, 10, status=RunStatus.STOPPED, reason="Stopped on request.")
    stopped.ended_at = datetime.now(UTC)
    done = _score(session, run, 40, status=RunStatus.COMPLETED, ended_at=datetime.now(UTC))
    base, own = [_replies(session, side, early) for side, early in zip(_sides(session, done), (0.1, 0.8), strict=True)]
    result = conclude_effort(own, base)
    done.result = result.model_dump(mode="json")
    under_way = _score(session, run, 20, status=RunStatus.RUNNING)
    for side in _sides(session, under_way):
        side.chosen = 32
    _replies(session, _sides(session, under_way)[0], 0.1)
    session.flush()
    return run


def _score(session: Session, run: Run, step: int, **fields: object) -> Study:
    study = make_effort_study(session, run, cuts=len(FRACTIONS), **fields)
    for stage, at in (("sft", 300), ("grpo", step)):
        of_step = Checkpoint.run_id == run.id, Checkpoint.stage == stage, Checkpoint.step == at
        checkpoint = session.scalars(select(Checkpoint).where(*of_step)).one()
        counts = {"rollouts": 64, "succeeded": 41, "reasoned": 38, "chosen": 16}
        played = factories.make_run(
            session, run.version, run.policy, name=f"Effort: {stage} {at}", checkpoint_id=checkpoint.id
        )
        side = StudyCheckpoint(
            study_id=study.id, checkpoint_id=checkpoint.id, run_id=played.id, stage=stage, step=at, **counts
        )
        side.is_base = stage == "sft"
        session.add(side)
    session.flush()
    return study


def _sides(session: Session, study: Study) -> Sequence[StudyCheckpoint]:
    of_study = select(StudyCheckpoint).where(StudyCheckpoint.study_id == study.id)
    return session.scalars(of_study.order_by(StudyCheckpoint.is_base.desc())).all()


def _replies(session: Session, side: StudyCheckpoint, early: float) -> list[ReplyCurve]:
    """`early`: what an answer is worth without any reasoning."""
    dice = random.Random(side.step)
    made = []
    for index in range(16):
        values = [
            min(1.0, max(0.0, round(4 * (early + (1 - early) * f**2 + dice.gauss(0, 0.1))) / 4)) for f in FRACTIONS
        ]
        row = ReplyCurve(f"heldout/{index}", tuple(values), area_under(FRACTIONS, values))
        made.append(row)
        session.add(
            EffortReply(
                study_checkpoint_id=side.id,
                rollout_id=new_id(),
                task=row.task,
                characters=340,
                values=values,
                score=row.score,
            )
        )
    side.is_done = True
    session.flush()
    return made


def _asked(session: Session, run: Run) -> dict[str, str]:
    criteria = (Criterion(name="correct", weight=3, description="Is the result right?"),)
    strict = make_judge(session, name="strict")
    judges = [strict, make_judge(session, name="by_rubric", scale=JudgeScale.RUBRIC, criteria=criteria, repeats=3)]
    gave_up = make_question(session, flags=("yes",))
    questions = [gave_up, make_question(session, name="thoughts", kind=GraderKind.MONITOR)]
    rollouts = session.scalars(select(Rollout).where(Rollout.run_id == run.id).order_by(Rollout.seq)).all()
    for number, rollout in enumerate(rollouts):
        if rollout.reward is None:
            continue
        has_answer = number != 3
        make_judgement(session, strict, rollout, number / 6 if has_answer else None, cost=0.0004)
        quotes = [cited(rollout, str(rollout.messages[1]["content"]))]
        make_answer(
            session,
            gave_up,
            rollout,
            ("yes" if number in (0, 5) else "no") if has_answer else None,
            citations=quotes,
            cost=0.0003,
        )
    states = (RunStatus.COMPLETED, RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.QUEUED)
    for grader, status in zip([*judges, *questions], states, strict=True):
        session.add(GraderRun(id=new_id(), grader_id=grader.id, run_id=run.id, status=status, total=5))
    session.flush()
    return {"judge": str(strict.id), "question": str(gave_up.id)}
