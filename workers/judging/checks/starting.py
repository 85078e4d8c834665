"""Does it start, does the manifest fit it, does an episode go to its end?"""

import time
from collections import Counter

from backend.domain.prompts import render_observation
from backend.domain.rollouts import task_of
from backend.domain.vocabulary import Split, StopReason
from workers.environments.client import Observation
from workers.judging.checks.base import Check, Finding, failed, listed, passed, warned
from workers.judging.checks.subject import Subject


async def _starts(subject: Subject) -> Finding:
    seconds = []
    async with subject.server.session() as session:
        for split in Split:
            for level in range(min(subject.levels, 20)):
                began = time.perf_counter()
                task = task_of(subject.manifest, split, level)
                opening = await subject.open(session, task)
                seconds.append(time.perf_counter() - began)
                if opening.done:
                    return failed(f"Reset of {task.key} (level {task.level}) gave an episode that is over already.")
    return passed(
        f"{len(seconds)} resets, of every level in both splits; the slowest took {max(seconds) * 1000:.0f} ms.",
        slowest_seconds=max(seconds),
        sessions=subject.server.sessions,
    )


async def _fits(subject: Subject) -> Finding:
    """The manifest's agent block against the action's schema and a real observation."""
    async with subject.server.session() as session:
        task = subject.tasks(2)[0]
        opening = await subject.open(session, task)
    problems = [*_action_problems(subject), *_observation_problems(subject, opening)]
    if problems:
        return failed(" ".join(problems), problems=problems)
    text = render_observation(subject.manifest.proctor.agent.observation, opening.fields)
    if not text.strip():
        return warned("The template renders, but the first observation is an empty text.")
    return passed(f"The template renders ({len(text)} characters) and the action's fields exist.", text=text[:500])


def _action_problems(subject: Subject) -> list[str]:
    spec, schema = subject.manifest.proctor.agent.action, subject.server.action_schema
    fields = [name for name in schema.get("properties", {}) if name != "metadata"]
    filled = spec.filled_fields
    if filled is None:
        return []
    if missing := sorted(filled - set(fields)):
        named = (
            f"`agent.action.field` is `{spec.field}`" if spec.field in missing else f"Replies fill {listed(missing)}"
        )
        return [f"{named}, but the action class has no such field; it has: {listed(fields)}."]
    others = [name for name in schema.get("required", []) if name not in {*filled, "metadata"}]
    if others:
        return [f"The action class also requires {listed(others)}, which a `{spec.format}` reply never fills."]
    return []


def _observation_problems(subject: Subject, opening: Observation) -> list[str]:
    agent = subject.manifest.proctor.agent
    problems = []
    try:
        render_observation(agent.observation, opening.fields)
    except ValueError as error:
        problems.append(f"{error}. The observation has: {listed(opening.fields, 20)}.")
    if agent.action.choices and not isinstance(opening.fields.get(agent.action.choices), list):
        problems.append(
            f"`agent.action.choices` is `{agent.action.choices}`, but the observation has no list of that name;"
            f" it has: {listed(opening.fields, 20)}."
        )
    return problems


async def _ends(subject: Subject) -> Finding:
    rollouts = await subject.rollouts("random")
    broken = [rollout for rollout in rollouts if not rollout.is_completed]
    if broken:
        errors = Counter(f"{rollout.error_kind}: {rollout.error_message}" for rollout in broken)
        [(error, count)] = errors.most_common(1)
        return failed(
            f"{len(broken)} of {len(rollouts)} episodes of random legal play broke. Most often ({count}×) {error}",
            broken,
            errors=[str(rollout.error_message) for rollout in broken[:5]],
        )
    turns = [len(rollout.steps) for rollout in rollouts]
    ends = Counter(str(rollout.stop_reason) for rollout in rollouts)
    seen = f"{len(rollouts)} episodes of random legal play, {min(turns)} to {max(turns)} turns; ended by {_count(ends)}"
    if not ends[StopReason.DONE]:
        return warned(f"{seen}. None was ended by the environment itself.", rollouts, ends=dict(ends))
    return passed(f"{seen}.", rollouts, ends=dict(ends), mean_turns=sum(turns) / len(turns))


def _count(ends: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}×" for reason, count in ends.most_common())


STARTS = Check("starts_and_resets", "It starts, and every level of both splits can be reset.", _starts)
FITS = Check(
    "agent_fits",
    "The manifest's agent block fits: the template renders, and the action's field exists.",
    _fits,
    needs=("starts_and_resets",),
)
ENDS = Check(
    "steps_and_ends",
    "Random legal play goes through whole episodes without an error.",
    _ends,
    needs=("starts_and_resets", "agent_fits", "rewards_finite"),
)
