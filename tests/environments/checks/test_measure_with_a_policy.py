"""The tasks of a version, measured with a chosen policy."""

from collections.abc import Sequence

import pytest

from backend.domain.environments.certificate import CheckResult
from backend.domain.environments.manifest import read_manifest
from backend.domain.errors import PolicyError
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import load_package
from tests.environments.checks.bent import bent_guess
from tests.library.conftest import Serve
from tests.needed_checks import needed_for
from workers.environments.checks.base import Check
from workers.environments.checks.policies import errs, says
from workers.environments.checks.registry import CHECKS, run_checks
from workers.environments.checks.subject import CheckSubject, Reference
from workers.policies.base import Policy, Turn
from workers.policies.scripted import ScriptedPolicy

pytestmark = pytest.mark.slow


MEASURING = needed_for("success_mixed", "error_rate")


async def measured(
    serve: Serve, policy: Policy, files: dict[str, str] | None = None, checks: Sequence[Check] = MEASURING
) -> dict[str, CheckResult]:
    files = files or load_package("number_guess")
    async with serve(files) as server:
        manifest = read_manifest(files["openenv.yaml"])
        subject = CheckSubject(manifest, server, files=files, reference=Reference("mind", policy))
        results = await run_checks(subject, on_begin=lambda check: None, on_result=lambda result: None, checks=checks)
    return {result.check: result for result in results}


async def test_a_policy_that_sometimes_succeeds_passes_and_is_named(serve: Serve):
    result = (await measured(serve, errs("gold", 0.3)))["success_mixed"]
    assert result.status is CheckStatus.PASSED, result.evidence
    assert result.evidence.startswith("The chosen policy `mind` succeeds in ")
    assert "`teacher`, erring about once an episode" in result.evidence
    assert result.details["groups"] == 24


@pytest.mark.parametrize(("script", "told"), [("empty", "never happens"), ("gold", "is certain")])
async def test_a_policy_too_weak_or_too_strong_warns_and_fails_nothing(serve: Serve, script: str, told: str):
    results = await measured(serve, ScriptedPolicy(script), checks=CHECKS)
    assert results["success_mixed"].status is CheckStatus.WARNED
    assert told in results["success_mixed"].evidence
    assert CheckStatus.FAILED not in {result.status for result in results.values()}


async def test_a_policy_that_cannot_be_asked_warns_and_is_not_held_against_the_environment(serve: Serve):
    def refuse(turn: Turn) -> str:
        raise PolicyError("the endpoint answered 401")

    results = await measured(serve, says(refuse))
    assert results["success_mixed"].status is CheckStatus.WARNED
    assert "401" in results["success_mixed"].evidence
    assert results["error_rate"].status is CheckStatus.PASSED


async def test_a_choice_of_policy_does_not_save_an_environment_that_always_pays(serve: Serve):
    files = bent_guess('1.0 if self._outcome == "win" else 0.0', "1.0")
    result = (await measured(serve, errs("gold", 0.3), files))["success_mixed"]
    assert result.status is CheckStatus.FAILED
