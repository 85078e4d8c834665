"""How much work and money a grader needs on a run, before it starts."""

import contextlib
import uuid
from collections.abc import Sequence

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from backend.domain.errors import JudgeError
from backend.domain.graders.canaries import demands, judge_canaries
from backend.domain.graders.prompts import (
    ContrastMember,
    GraderPrompt,
    RolloutFacts,
    contrast_prompt,
    judge_prompt,
    question_prompt,
)
from backend.domain.graders.settings import GraderKind, JudgeSettings, QuestionSettings, read_settings
from backend.domain.policies.prices import cost_of
from backend.graders.schemas import GradingEstimateResponse
from backend.graders.selection import (
    contrast_groups,
    count_of,
    nothing_to_grade,
    rollouts_to_grade,
    spread_over,
    without_grade,
)
from backend.graders.tables import Grade, Grader
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for English."""
REPLY_TOKENS = 250
"""Assumed length of a reply if the grader has no grades yet."""


def estimate_run(session: Session, run: Run, grader: Grader, where: str, cluster: str = "") -> GradingEstimateResponse:
    """Raises InvalidInput for a bad filter."""
    settings = read_settings(grader.settings)
    prompts: list[GraderPrompt] = []
    tokens: tuple[float, float] | None = None  # that one grade reads and writes
    basis = ""
    if isinstance(settings, QuestionSettings) and settings.kind is GraderKind.CONTRAST:
        groups = contrast_groups(session, run, settings.each, where, cluster)
        count, graded = len(groups), 0
        for group in groups[:4]:
            members = [ContrastMember(each, is_high=True) for each in _facts(session, [*group.high, *group.low])]
            prompts.append(contrast_prompt(settings, members, 0))
    else:
        rollouts = rollouts_to_grade(session, run, settings, where)
        total = count_of(session, rollouts)
        count = count_of(session, without_grade(rollouts, grader.id))
        graded = total - count
        means = select(func.count(), func.avg(Grade.tokens_in), func.avg(Grade.tokens_out))
        past, read, written = session.execute(means.where(Grade.grader_id == grader.id)).one()
        if read:
            tokens, basis = (float(read), float(written)), f"its {past:,} grades so far"
        elif total:
            ids = spread_over(session.scalars(rollouts.order_by(Rollout.seq)).all(), 24)
            for facts in _facts(session, ids):
                with contextlib.suppress(JudgeError):
                    prompts.append(
                        judge_prompt(settings, facts)
                        if isinstance(settings, JudgeSettings)
                        else question_prompt(settings, facts)
                    )
    if not count + graded:
        return GradingEstimateResponse(count=0, graded=0, problem=nothing_to_grade(settings, where))
    if prompts:
        characters = sum(len(str(message["content"])) for prompt in prompts for message in prompt.messages)
        repeats = settings.repeats if isinstance(settings, JudgeSettings) else 1
        tokens = (characters / len(prompts) / CHARACTERS_PER_TOKEN * repeats, float(REPLY_TOKENS * repeats))
        basis = f"the length of {len(prompts):,} requests"
    if tokens is None or not count:
        return GradingEstimateResponse(count=count, graded=graded)
    canaries = len(judge_canaries(settings.controls)) if isinstance(settings, JudgeSettings) else len(demands(settings))
    tokens_in, tokens_out = (each * (count + canaries) for each in tokens)
    cost = None
    with contextlib.suppress(ValidationError):  # a price that an older version stored
        cost = cost_of(grader.policy.configuration.get("price"), round(tokens_in), round(tokens_out))
    return GradingEstimateResponse(
        count=count, graded=graded, tokens_in=tokens_in, tokens_out=tokens_out, cost=cost, basis=basis
    )


def _facts(session: Session, ids: Sequence[uuid.UUID]) -> list[RolloutFacts]:
    rows = session.scalars(select(Rollout).options(undefer(Rollout.messages)).where(Rollout.id.in_(ids)))
    return [RolloutFacts(rollout.messages) for rollout in rows]
