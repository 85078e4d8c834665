"""All checks in the order of the certificate, and the loop that runs them."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.domain.environments.certificate import CheckResult
from backend.domain.errors import RolloutError
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import CheckStatus
from workers.environments.checks import (
    answers,
    branches,
    cost,
    determinism,
    grader,
    misuse,
    ranges,
    reward,
    start,
    tasks,
    views,
)
from workers.environments.checks.base import Check, CheckFinding, failed, listed, skipped
from workers.environments.checks.subject import CheckSubject

_MODULES = (start, answers, determinism, reward, ranges, grader, branches, tasks, misuse, cost, views)
CHECKS = tuple(value for module in _MODULES for value in vars(module).values() if isinstance(value, Check))


async def run_checks(
    subject: CheckSubject,
    *,
    on_begin: Callable[[Check], None] = lambda check: None,
    on_result: Callable[[CheckResult], None] = lambda result: None,
    rollout_id: Callable[[Rollout], object] = lambda rollout: f"{rollout.group}/{rollout.member}",
    checks: Sequence[Check] = CHECKS,
) -> list[CheckResult]:
    """Run the checks in order, and skip checks that need a failed one. Stops early on request."""
    results: list[CheckResult] = []
    blocked: set[str] = set()
    for check in checks:
        if subject.should_stop():
            break
        on_begin(check)
        began, episodes_before = time.perf_counter(), subject.episodes
        if obstacles := [id for id in check.needs if id in blocked]:
            finding = skipped(f"Not run because of {listed(obstacles)}.")
        else:
            try:
                finding = await check.run(subject)
            except RolloutError as error:  # the environment broke during the check: that is evidence
                finding = failed(str(error)[:2000])
        if obstacles or finding.status is CheckStatus.FAILED:
            blocked.add(check.id)
        result = _result(check, finding)
        result.seconds, result.episodes = time.perf_counter() - began, subject.episodes - episodes_before
        for survivor in _listed_survivors(result.details):
            survivor["rollout"] = str(rollout_id(survivor["rollout"]))
        result.rollouts = list(dict.fromkeys(str(rollout_id(rollout)) for rollout in finding.rollouts))
        results.append(result)
        on_result(result)
    return results


def _listed_survivors(details: Mapping[str, object]) -> list[dict[str, Any]]:
    survivors = details.get("survivors")
    return survivors if isinstance(survivors, list) else []


def does_not_start(reason: str) -> list[CheckResult]:
    """Return the results for a package whose server did not start."""
    first, *others = CHECKS
    because = skipped(f"Not run because of {first.id}.")
    return [_result(first, failed(reason)), *(_result(check, because) for check in others)]


def _result(check: Check, finding: CheckFinding) -> CheckResult:
    return CheckResult(
        check=check.id,
        label=check.label,
        sentence=check.sentence,
        advice=check.advice,
        example=inspect.cleandoc(check.example) if finding.status in (CheckStatus.FAILED, CheckStatus.WARNED) else "",
        status=finding.status,
        evidence=finding.evidence,
        details=finding.details,
        theme=check.theme,
        applies=finding.applies,
    )
