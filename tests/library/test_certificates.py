"""What the certificate says of the packages that come with Proctor, and of the templates as they are."""

import pytest

from backend.domain.checks import certificate_status
from backend.domain.manifest import read_manifest
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import load_package, render_template
from tests.library.conftest import Serve
from workers.judging.checks.examine import examine
from workers.judging.checks.subject import Subject

pytestmark = pytest.mark.slow


async def certify(serve: Serve, files: dict[str, str]):
    manifest = read_manifest(files["openenv.yaml"])
    async with serve(files) as server:
        return await examine(Subject(manifest, server), on_begin=lambda check: None, on_result=lambda result: None)


@pytest.mark.parametrize("name", ["tictactoe", "number_guess", "reverse_text"])
async def test_a_sound_package_passes_every_check(serve: Serve, name: str):
    results = await certify(serve, load_package(name))
    assert {result.check: result.evidence for result in results if result.status is not CheckStatus.PASSED} == {}


@pytest.mark.parametrize("template", ["single_turn", "multi_turn_game"])
async def test_a_template_passes_before_anything_is_changed(serve: Serve, template: str):
    results = await certify(serve, render_template(template, "fresh"))
    assert {result.check: result.evidence for result in results if result.status is not CheckStatus.PASSED} == {}


async def test_the_hackable_package_fails_for_its_hole_and_nothing_else(serve: Serve):
    results = await certify(serve, load_package("sloppy_guess"))
    failed = {result.check: result for result in results if result.status is not CheckStatus.PASSED}
    assert list(failed) == ["degenerate_policies"]
    figures = failed["degenerate_policies"].details["policies"]
    assert figures["early_exit"]["mean"] == pytest.approx(1.05, abs=0.02)
    assert figures["random"]["mean"] < 0.75
    assert certificate_status(results) is CheckStatus.FAILED


async def test_gold_plays_as_well_as_is_declared(serve: Serve):
    results = {result.check: result for result in await certify(serve, load_package("tictactoe"))}
    levels = results["gold_reaches_bound"].details["levels"]
    assert levels[2]["mean"] == pytest.approx(0.7)
    assert levels[0]["mean"] > levels[1]["mean"] > levels[2]["mean"]
