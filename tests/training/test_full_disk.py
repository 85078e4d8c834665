"""A full disk at a checkpoint: the error names it, and nothing that was stored is lost. A limit of the size of files
represents the disk."""

import resource
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from backend.core.session import transaction
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import PolicyKind, RunStatus
from backend.settings import get_settings
from tests.factories import make_policy, make_run
from tests.training.conftest import checkpoints_of, run_of
from tests.training.game import make_tiny
from workers.training.checkpoints import CheckpointStore, discard_incomplete, is_disk_full, mark_complete
from workers.training.run import train


@contextmanager
def full_disk(largest_file: int = 100_000) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_earlier_checkpoint_stays_and_nothing_half_written_does(installation: None, tmp_path: Path) -> None:
    with transaction() as session:
        policy = make_policy(session, kind=PolicyKind.LOCAL)
        run_id, policy_id = make_run(session, policy=policy).id, policy.id
    store = CheckpointStore(run_id, policy_id, tmp_path / "run")
    model, tokenizer = make_tiny()
    saved = store.save(Stage.GRPO, 1, model, tokenizer)
    with full_disk(), pytest.raises(Exception, match=r"(?i)file too large") as caught:
        store.save(Stage.GRPO, 2, model, tokenizer)
    assert is_disk_full(caught.value)
    assert store.find(Stage.GRPO, 2) is None
    assert [path.name for path in (get_settings().data / "artifacts" / saved.artifact).parent.iterdir()] == ["grpo-1"]
    assert not list((tmp_path / "run").glob("saving-*"))
    assert torch.equal(next(store.load(saved)[0].parameters()), next(model.parameters()))
    assert store.save(Stage.GRPO, 2, model, tokenizer).step == 2


def test_an_incomplete_state_gives_its_space_back(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / "grpo" / f"checkpoint-{step}").mkdir(parents=True)
    mark_complete(tmp_path / "grpo" / "checkpoint-1")
    with full_disk(), pytest.raises(RuntimeError) as caught:
        torch.save(torch.zeros(100_000), tmp_path / "grpo" / "checkpoint-2" / "optimizer.pt")
    assert is_disk_full(caught.value)
    discard_incomplete(tmp_path)
    assert [path.name for path in (tmp_path / "grpo").iterdir()] == ["checkpoint-1"]
    assert not is_disk_full(ValueError("the loss is not a number"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_run_pauses_and_says_why(new_run: Callable[..., uuid.UUID]) -> None:
    run_id = new_run()
    with full_disk():
        assert train(run_id).status is RunStatus.PAUSED
    assert "disk is full" in (run_of(run_id).reason or "")
    assert "resume the run" in (run_of(run_id).reason or "")
    assert checkpoints_of(run_id) == {}
