"""The audit of the grader: holes in a reward fail for the right reason, and the same environment without one passes."""

import pytest
import yaml

from backend.domain.environments.foreign import read_foreign
from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.environments.proposals import propose
from backend.domain.vocabulary import CheckStatus
from backend.environments.import_package import make_ready, write_manifest
from backend.environments.imports import probe_manifest
from tests.environments.checks.bad_rewards import HOLES
from tests.environments.checks.test_checks_find_faults import look_at
from tests.environments.importing.packages import door_package
from tests.library.conftest import Serve
from tests.needed_checks import needed_for
from workers.environments import probing
from workers.environments.checks.registry import CHECKS
from workers.environments.client import EnvHost

pytestmark = pytest.mark.slow

AUDIT = needed_for(
    *("answers_known", "gold_reaches_bound", "degenerate_policies", "quality_ladder", "repeats_in_range"),
    *("answer_hidden", *(check.id for check in CHECKS if check.theme == "grader")),
)


@pytest.mark.parametrize("name", HOLES)
async def test_a_hole_in_the_reward_fails_for_the_right_reason(serve: Serve, name: str) -> None:
    hole = HOLES[name]
    results = await look_at(serve, hole.bad, checks=needed_for("answers_known", hole.check))
    told = {each: result.evidence for each, result in results.items() if result.status is CheckStatus.FAILED}
    assert hole.check in told, told
    assert hole.says in told[hole.check]
    assert results[hole.check].rollouts


@pytest.mark.parametrize("name", HOLES)
async def test_the_same_environment_without_the_hole_fails_nothing(serve: Serve, name: str) -> None:
    results = await look_at(serve, HOLES[name].sound, checks=AUDIT)
    told = {each: result.evidence for each, result in results.items() if result.status is CheckStatus.FAILED}
    assert not told


async def test_an_import_that_names_its_answers_is_checked_like_a_package_with_scripts(
    serve: Serve, env_host: EnvHost
) -> None:
    ready = make_ready(read_foreign(door_package(), "doors"), variables={})
    report, probed = ImportReport(name="doors"), {**ready.files, MANIFEST_PATH: probe_manifest(ready.manifest)}
    await probing.start(env_host, probed, report)
    await probing.play(env_host, probed, report)
    rest = {key: value for key, value in yaml.safe_load(probed[MANIFEST_PATH]).items() if key != "proctor"}
    results = await look_at(serve, {**probed, MANIFEST_PATH: write_manifest(rest, propose(report))})
    skipped = {name for name, result in results.items() if result.applies and result.status is CheckStatus.SKIPPED}
    assert not skipped
    assert "<door> tags earns 1.25" in results["answers_known"].evidence
    not_for_one_turn = {"repeats_in_range", "repetition_pays_less", "levels_monotone", "canaries_unsolvable"}
    without_files = {"fixtures_hold", "judged_fixtures_hold"}
    without_recorder = {"branches_executed"}  # `look_at` starts no server that records branches
    not_applied = {name for name, result in results.items() if not result.applies}
    assert not_applied == not_for_one_turn | without_files | without_recorder | {"views_render"}
