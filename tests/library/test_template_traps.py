"""Impossible tasks in the templates that are ready for them."""

import pytest

from backend.domain.vocabulary import CheckStatus
from backend.environments.library import render_template
from tests.library.conftest import Serve
from tests.library.test_certificates import certify
from tests.needed_checks import needed_for

pytestmark = pytest.mark.slow

TRAPPED = ("code_execution", "single_turn", "tool_calling")


def trapped(template: str) -> dict[str, str]:
    files = render_template(template, "fresh")
    manifest = files["openenv.yaml"].replace("canaries: 0}", "canaries: 0.2}")
    assert manifest != files["openenv.yaml"]
    return files | {"openenv.yaml": manifest}


@pytest.mark.parametrize("template", TRAPPED)
async def test_perfect_play_passes_no_impossible_task(serve: Serve, template: str):
    results = await certify(serve, trapped(template), needed_for("canaries_unsolvable"))
    assert {result.check: result.evidence for result in results if result.status is not CheckStatus.PASSED} == {}
    assert "canaries_unsolvable" in {result.check for result in results}


@pytest.mark.parametrize("template", TRAPPED)
async def test_an_impossible_task_looks_like_any_other(serve: Serve, template: str):
    async with serve(trapped(template)) as server, server.session() as session:
        for seed in range(8):
            task = {"seed": seed, "split": "heldout", "level": seed % 2}
            ordinary = await session.reset(task, timeout=10)
            impossible = await session.reset(task | {"canary": True}, timeout=10)
            assert impossible.fields == ordinary.fields
