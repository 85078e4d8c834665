"""Each check fails for the fault that it is there for, and says what is wrong."""

from collections.abc import Sequence

import pytest

from backend.domain.environments.certificate import CheckResult, certificate_status
from backend.domain.environments.manifest import read_manifest
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import load_package
from tests.environments.checks.bent import FAULTS, FIRST, SEEN_BY_ALL, WARNINGS, bent, bent_game
from tests.library.conftest import Serve
from tests.needed_checks import needed_for
from workers.environments.checks.base import Check
from workers.environments.checks.registry import CHECKS, does_not_start, run_checks
from workers.environments.checks.subject import SECOND_HASH_SEED, CheckSubject

pytestmark = pytest.mark.slow


async def look_at(
    serve: Serve, files: dict[str, str], until: str = "", checks: Sequence[Check] = CHECKS, **subject
) -> dict[str, CheckResult]:
    """The results by check; of all checks, or of those up to one."""
    found: dict[str, CheckResult] = {}
    async with serve(files) as server:
        twin = {
            "second_process": lambda: serve(files, SECOND_HASH_SEED),
            "branch_recorder": lambda: serve(files, branches=True),
            "should_stop": lambda: until in found,
        }
        examined = CheckSubject(read_manifest(files["openenv.yaml"]), server, files=files, **(twin | subject))
        await run_checks(
            examined,
            on_begin=lambda check: None,
            on_result=lambda result: found.update({result.check: result}),
            checks=checks,
        )
    return found


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_right_check_fails(serve: Serve, fault: str):
    files, check = FAULTS[fault]
    are_all_looked_at = fault in FIRST or fault in SEEN_BY_ALL
    results = await look_at(
        serve, files, until=check, checks=CHECKS if are_all_looked_at else needed_for("answers_known", check)
    )
    failed = [result.check for result in results.values() if result.status is CheckStatus.FAILED]
    told = {name: result.evidence for name, result in results.items()}
    assert check in (failed[:1] if fault in FIRST else failed), told
    assert certificate_status(list(results.values())) is CheckStatus.FAILED
    assert results[check].evidence


async def test_a_missing_field_is_named_with_those_that_exist(serve: Serve):
    results = await look_at(serve, bent("tictactoe", "openenv.yaml", "field: cell", "field: cel"))
    assert results["agent_fits"].evidence == (
        "`agent.action.field` is `cel`, but the action class has no such field; it has: cell."
    )
    assert results["gold_reaches_bound"].status is CheckStatus.SKIPPED


async def test_the_error_of_the_environment_is_quoted(serve: Serve):
    results = await look_at(serve, bent_game("self._turns += 1", 'raise ValueError("the board is on fire")'))
    assert "the board is on fire" in results["steps_and_ends"].evidence
    skipped = {name for name, result in results.items() if result.status is CheckStatus.SKIPPED}
    assert {"gold_reaches_bound", "degenerate_policies", "columns_add_up"} <= skipped


@pytest.mark.parametrize(
    ("statement", "told"),
    [("__import__('time').sleep(60)", "no answer within 0.5 s"), ("__import__('os')._exit(3)", "")],
    ids=["hangs", "ends its server"],
)
async def test_a_package_that_takes_its_server_with_it_is_found_in_bounded_time(
    serve: Serve, statement: str, told: str
):
    files = bent_game("self._turns += 1", f"self._turns += 1 if self._turns < 1 else {statement}")
    manifest = files["openenv.yaml"].replace("step_timeout_seconds: 10", "step_timeout_seconds: 0.5")
    results = await look_at(serve, files | {"openenv.yaml": manifest})
    assert results["steps_and_ends"].status is CheckStatus.FAILED
    assert told in results["steps_and_ends"].evidence
    assert sum(result.seconds for result in results.values()) < 30


@pytest.mark.parametrize("fault", WARNINGS)
async def test_the_right_check_warns(serve: Serve, fault: str):
    files, check = WARNINGS[fault]
    results = await look_at(serve, files)
    assert results[check].status is CheckStatus.WARNED, results[check].evidence
    assert not [name for name, result in results.items() if result.status is CheckStatus.FAILED]


def test_every_check_was_seen_to_find_its_fault():
    found = {check for _, check in [*FAULTS.values(), *WARNINGS.values()]}
    needs_verdicts = {"judged_fixtures_hold"}  # test_consequences_certificate.py
    assert {check.id for check in CHECKS} == found | needs_verdicts


async def test_rollouts_are_handed_over_and_named_in_the_evidence(serve: Serve):
    rollouts: list[Rollout] = []
    results = await look_at(serve, load_package("number_guess"), on_rollout=rollouts.append)
    names = {f"{rollout.group}/{rollout.member}" for rollout in rollouts}
    assert len(names) == len(rollouts) > 100
    assert set(results["gold_reaches_bound"].rollouts) <= names


async def test_it_ends_early_when_told_to_stop(serve: Serve):
    begun: list[str] = []
    files = load_package("tictactoe")
    async with serve(files) as server:
        subject = CheckSubject(read_manifest(files["openenv.yaml"]), server, should_stop=lambda: len(begun) >= 2)
        results = await run_checks(
            subject, on_begin=lambda check: begun.append(check.id), on_result=lambda result: None
        )
    assert len(results) == 2 < len(CHECKS)


def test_a_package_that_does_not_start_fails_the_first_check_with_the_reason():
    first, *others = does_not_start("ModuleNotFoundError: No module named 'numpi'")
    assert (first.check, first.status) == ("starts_and_resets", CheckStatus.FAILED)
    assert "numpi" in first.evidence
    assert {result.status for result in others} == {CheckStatus.SKIPPED}
