"""Certificates of the built-in packages and of the templates."""

from collections.abc import Sequence

import pytest

from backend.domain.environments.certificate import CheckResult, certificate_status
from backend.domain.environments.manifest import read_manifest
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import load_package, render_template
from tests.library.conftest import Serve
from tests.needed_checks import needed_for
from workers.environments.checks.base import Check
from workers.environments.checks.registry import CHECKS, run_checks
from workers.environments.checks.subject import SECOND_HASH_SEED, CheckSubject

pytestmark = pytest.mark.slow


async def certify(serve: Serve, files: dict[str, str], checks: Sequence[Check] = CHECKS):
    manifest = read_manifest(files["openenv.yaml"])
    async with serve(files) as server:
        subject = CheckSubject(
            manifest,
            server,
            files=files,
            second_process=lambda: serve(files, SECOND_HASH_SEED),
            branch_recorder=lambda: serve(files, branches=True),
        )
        return await run_checks(subject, on_begin=lambda check: None, on_result=lambda result: None, checks=checks)


def not_passed(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.check: result for result in results if result.applies and result.status is not CheckStatus.PASSED}


SOUND = (
    "arithmetic_ladder",
    "connect_four",
    "double_check",
    "number_guess",
    "reverse_text",
    "support_triage",
    "tictactoe",
    "tictactoe_duel",
    "wordle",
)
TEMPLATES = ("judged_answer", "multi_turn_game", "optimisation", "process_supervised", "single_turn")


@pytest.mark.parametrize("name", SOUND)
async def test_a_sound_package_passes_every_check(serve: Serve, name: str):
    found = not_passed(await certify(serve, load_package(name)))
    assert {check: result.evidence for check, result in found.items()} == {}


@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_template_passes_before_anything_is_changed(serve: Serve, template: str):
    found = not_passed(await certify(serve, render_template(template, "fresh")))
    assert {check: result.evidence for check, result in found.items()} == {}


async def test_the_hackable_package_fails_for_its_hole_and_nothing_else(serve: Serve):
    results = await certify(serve, load_package("sloppy_guess"))
    failed = not_passed(results)
    assert list(failed) == ["degenerate_policies", "fixtures_hold", "effort_pays"]
    assert "fixtures/early_exit.json: the hack earns 1.05" in failed["fixtures_hold"].evidence
    figures = failed["degenerate_policies"].details["policies"]
    assert figures["early_exit"]["mean"] == pytest.approx(1.05, abs=0.02)
    assert figures["random"]["mean"] < 0.75
    assert certificate_status(results) is CheckStatus.FAILED


async def test_a_hidden_reward_fails_because_doing_what_is_asked_does_not_reach_the_top(serve: Serve):
    results = await certify(serve, load_package("silver_words"))
    failed = not_passed(results)
    assert list(failed) == ["gold_reaches_bound", "quality_ladder", "fixtures_hold", "success_mixed"]
    assert "Gold misses the highest reward of 2.100" in failed["gold_reaches_bound"].evidence
    assert "`wrong` earns more than `partial`" in failed["quality_ladder"].evidence
    assert "fixtures/silver_only.json: the hack earns 1.1" in failed["fixtures_hold"].evidence
    assert certificate_status(results) is CheckStatus.FAILED


async def test_gold_plays_as_well_as_is_declared(serve: Serve):
    *_, gold = await certify(serve, load_package("tictactoe"), needed_for("gold_reaches_bound"))
    levels = gold.details["levels"]
    assert levels[2]["mean"] == pytest.approx(0.7)
    assert levels[0]["mean"] > levels[1]["mean"] > levels[2]["mean"]
