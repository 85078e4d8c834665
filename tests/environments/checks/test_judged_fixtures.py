"""Judged episodes are played again by the certificate of every version, and the check names fixture and judge."""

import pytest

from backend.domain.environments.fixtures import JudgedFixture
from backend.domain.environments.manifest import read_manifest
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import CheckStatus, Split
from backend.environments.library import load_package
from tests.library.conftest import Serve
from workers.environments.checks.base import CheckFinding
from workers.environments.checks.reward import judged_fixtures_hold
from workers.environments.checks.subject import CheckSubject

pytestmark = pytest.mark.slow

HACK = ["<guess>50</guess>", "I stop here."]


async def look(serve: Serve, files: dict[str, str], **bound: float) -> CheckFinding:
    manifest = read_manifest(files["openenv.yaml"])
    bounds = {"lowest": None, "highest": None} | bound
    fixture = JudgedFixture("hack-0af31c", "Ada", task_of(manifest, Split.HELDOUT, 7), HACK, **bounds)
    async with serve(files) as server:
        return await judged_fixtures_hold.run(CheckSubject(manifest, server, files=files, judged=[fixture, fixture]))


async def test_a_hack_that_still_pays_fails_the_certificate(serve: Serve):
    finding = await look(serve, load_package("sloppy_guess"), highest=0.75)
    assert finding.status is CheckStatus.FAILED
    assert "hack-0af31c (judged by Ada) earns 1.05 instead of at most 0.75" in finding.evidence
    assert len(finding.rollouts) == 2


async def test_a_repaired_reward_holds_and_an_honest_bound_looks_the_other_way(serve: Serve):
    files = load_package("sloppy_guess")
    repaired = files | {"openenv.yaml": files["openenv.yaml"].replace("weight: 1.0,", "weight: 0.1,")}
    finding = await look(serve, repaired, highest=0.75)
    assert finding.status is CheckStatus.PASSED, finding.evidence
    assert "2 judged a hack and 0 judged honest" in finding.evidence
    assert (await look(serve, repaired, lowest=0.75)).status is CheckStatus.FAILED


async def test_an_environment_that_no_one_judged_is_not_warned(serve: Serve):
    files = load_package("sloppy_guess")
    async with serve(files) as server:
        finding = await judged_fixtures_hold.run(CheckSubject(read_manifest(files["openenv.yaml"]), server))
    assert (finding.status, finding.applies) == (CheckStatus.SKIPPED, False)
