"""Run all checks in order, for a certificate."""

import time
from collections.abc import Callable, Sequence

from backend.domain.environments.certificate import CheckResult
from backend.domain.errors import RolloutError
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import CheckStatus
from workers.environments.checks import costs, determinism, grading, misuse, ranges, reward, start, tasks
from workers.environments.checks.base import Check, Finding, failed, listed
from workers.environments.checks.subject import Subject

TOPICS = (start, determinism, reward, grading, ranges, tasks, misuse, costs)
"""Modules with checks, in the order of the certificate."""

CHECKS = tuple(found for topic in TOPICS for found in vars(topic).values() if isinstance(found, Check))


def needed_for(*names: str) -> tuple[Check, ...]:
    """These checks and those without which they have no meaning, in their order."""
    wanted = set(names)
    for check in reversed(CHECKS):
        if check.id in wanted:
            wanted.update(check.needs)
    return tuple(check for check in CHECKS if check.id in wanted)


async def examine(
    subject: Subject,
    *,
    on_begin: Callable[[Check], None],
    on_result: Callable[[CheckResult], None],
    rollout_id: Callable[[Rollout], object] = lambda rollout: f"{rollout.group}/{rollout.member}",
    checks: Sequence[Check] = CHECKS,
) -> list[CheckResult]:
    """Run every check in order; skip checks that need a failed one. Stops early on request."""
    results: list[CheckResult] = []
    blocked: set[str] = set()
    for check in checks:
        if subject.should_stop():
            break
        on_begin(check)
        began, before = time.perf_counter(), subject.episodes
        if obstacles := [name for name in check.needs if name in blocked]:
            finding = Finding(CheckStatus.SKIPPED, f"Not looked at, because of {listed(obstacles)}.")
        else:
            finding = await _look(check, subject)
        if obstacles or finding.status is CheckStatus.FAILED:
            blocked.add(check.id)
        seconds, episodes = time.perf_counter() - began, subject.episodes - before
        shown = list(dict.fromkeys(str(rollout_id(rollout)) for rollout in finding.rollouts))
        results.append(_result(check, finding, seconds=seconds, episodes=episodes, rollouts=shown))
        on_result(results[-1])
    return results


def does_not_start(reason: str) -> list[CheckResult]:
    """The results for a package whose server never came up."""
    first, *others = CHECKS
    finding = Finding(CheckStatus.SKIPPED, f"Not looked at, because of {first.id}.")
    return [_result(first, failed(reason)), *(_result(check, finding) for check in others)]


async def _look(check: Check, subject: Subject) -> Finding:
    """What breaks while a check looks is the environment's failure, and evidence."""
    try:
        return await check.look(subject)
    except RolloutError as error:
        return failed(str(error)[:2000])


def _result(
    check: Check, finding: Finding, *, seconds: float = 0.0, episodes: int = 0, rollouts: list[str] | None = None
) -> CheckResult:
    return CheckResult(
        check=check.id,
        label=check.label,
        sentence=check.sentence,
        advice=check.advice,
        status=finding.status,
        evidence=finding.evidence,
        details=finding.details,
        seconds=seconds,
        theme=check.theme,
        episodes=episodes,
        rollouts=rollouts or [],
        applies=finding.applies,
    )
