"""All checks one after the other: what is asked for a certificate."""

import time
from collections.abc import Callable

from backend.domain.checks import CheckResult
from backend.domain.errors import RolloutError
from backend.domain.rollouts import Rollout
from backend.domain.vocabulary import CheckStatus
from workers.judging.checks import bounds, determinism, misuse, rewards, starting
from workers.judging.checks.base import Check, Finding, failed, listed
from workers.judging.checks.subject import Subject

CHECKS: tuple[Check, ...] = (
    starting.STARTS,
    starting.FITS,
    rewards.FINITE,
    starting.ENDS,
    determinism.RESETS_ALIKE,
    determinism.STEPS_ALIKE,
    determinism.SEEDS_DIFFER,
    determinism.ISOLATED,
    bounds.GOLD,
    bounds.DEGENERATE_POLICIES,
    bounds.MONOTONE,
    rewards.ADD_UP,
    rewards.IN_RANGE,
    misuse.AFTER_DONE,
    misuse.MALFORMED,
)


async def examine(
    subject: Subject,
    *,
    on_begin: Callable[[Check], None],
    on_result: Callable[[CheckResult], None],
    rollout_id: Callable[[Rollout], object] = lambda rollout: f"{rollout.group}/{rollout.member}",
) -> list[CheckResult]:
    """Every check in order; those that a failure leaves without meaning are skipped. Ends early when told to stop."""
    results: list[CheckResult] = []
    blocked: set[str] = set()
    for check in CHECKS:
        if subject.should_stop():
            break
        on_begin(check)
        began = time.perf_counter()
        if obstacles := [name for name in check.needs if name in blocked]:
            finding = Finding(CheckStatus.SKIPPED, f"Not looked at, because of {listed(obstacles)}.")
        else:
            finding = await _look(check, subject)
        if obstacles or finding.status is CheckStatus.FAILED:
            blocked.add(check.id)
        if finding.rollouts:
            finding.details["rollouts"] = [str(rollout_id(rollout)) for rollout in finding.rollouts]
        results.append(_result(check, finding, time.perf_counter() - began))
        on_result(results[-1])
    return results


def does_not_start(reason: str) -> list[CheckResult]:
    """The results for a package whose server never came up."""
    first, *others = CHECKS
    finding = Finding(CheckStatus.SKIPPED, f"Not looked at, because of {first.id}.")
    return [_result(first, failed(reason), 0.0), *(_result(check, finding, 0.0) for check in others)]


async def _look(check: Check, subject: Subject) -> Finding:
    """What breaks while a check looks is the environment's failure, and evidence."""
    try:
        return await check.look(subject)
    except RolloutError as error:
        return failed(str(error)[:2000])


def _result(check: Check, finding: Finding, seconds: float) -> CheckResult:
    return CheckResult(check.id, check.sentence, finding.status, finding.evidence, finding.details, seconds)
