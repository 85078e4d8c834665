"""The certificates of the packages that run programs."""

import pytest

from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import content_hash
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import load_package, render_template
from tests.envhost_fixture import prepared
from workers.environments.checks.registry import run_checks
from workers.environments.checks.subject import CheckSubject
from workers.environments.client import EnvHost


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["python_functions", "faster_code", "code_execution"])
async def test_they_pass_every_check(env_host: EnvHost, name: str) -> None:
    files = render_template(name, "fresh") if name == "code_execution" else load_package(name)
    manifest, hash_ = read_manifest(files["openenv.yaml"]), content_hash(files)
    resources = manifest.proctor.resources
    async with env_host.lease(await prepared(env_host, files), resources) as server:
        subject = CheckSubject(
            manifest,
            server,
            files=files,
            second_process=lambda: env_host.lease(hash_, resources),
            branch_recorder=lambda: env_host.lease(hash_, resources, branches=True),
        )
        results = await run_checks(subject, on_begin=lambda check: None, on_result=lambda result: None)
    print(sorted(((round(r.seconds,1), r.check) for r in results), reverse=True)[:12])
    applying = [result for result in results if result.applies]
    of_several_turns = {"repeats_in_range", "repetition_pays_less"}
    have_nothing_to_look_at = {"judged_fixtures_hold", "canaries_unsolvable", *of_several_turns}
    assert {result.check for result in results if not result.applies} <= have_nothing_to_look_at
    assert {result.check: result.evidence for result in applying if result.status is not CheckStatus.PASSED} == {}
