"""Does it start, and does an episode go to its end?"""

import time
from collections import Counter

from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import Split, StopReason
from workers.environments.checks.base import Check, Finding, failed, passed, warned
from workers.environments.checks.subject import Subject


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
ENDS = Check(
    "steps_and_ends",
    "Random legal play goes through whole episodes without an error.",
    _ends,
    needs=("starts_and_resets", "agent_fits", "rewards_finite"),
)
