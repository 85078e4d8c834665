"""How the showcase of an instruct model serves an export: a child of `proctor serve`, which ends with the block."""

from pathlib import Path

import pytest

from backend.domain.environments.manifest import read_manifest
from backend.showcase.instruct import EASIEST, LEVELS, _serving
from backend.showcase.steps import ShowcaseFailed
from tests.training.conftest import built_in


@pytest.mark.slow
def test_a_file_that_is_not_there_fails_the_showcase(tmp_path: Path) -> None:
    with (
        pytest.raises(ShowcaseFailed, match=r"proctor serve gone\.gguf` did not start"),
        _serving(tmp_path / "gone.gguf"),
    ):
        pass


def test_its_tasks_are_among_the_held_out_tasks() -> None:
    tasks = read_manifest(built_in("arithmetic_ladder")["openenv.yaml"]).proctor.tasks
    assert tasks.levels == LEVELS
    assert sum(place % LEVELS < EASIEST for place in range(tasks.heldout)) >= 400
