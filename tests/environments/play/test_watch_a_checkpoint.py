"""A real checkpoint continues an episode in a separate process."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from backend.core.artifacts import put_folder
from backend.core.session import transaction
from backend.domain.environments.play import PlayPhase
from backend.domain.vocabulary import PolicyKind
from backend.policies.tables import Policy
from tests import factories
from tests.environments.play.conftest import begin, reply, view, work

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("counter"),
    pytest.mark.filterwarnings("default"),
]
PAGE = "/environments/counter/play"


@pytest.fixture
def checkpoint(ada: TestClient, tmp_path: Path) -> str:
    """The key of an untrained model's checkpoint."""
    from backend.domain.training.configuration import ModelChoice
    from workers.models.build import build_model, build_tokenizer

    tokenizer = build_tokenizer(["start 0", "Your reply could not be read.", "1", "2", "3"] * 9, context=1024)
    model = build_model(tokenizer, ModelChoice(context=1024), seed=5)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    with transaction() as session:
        policy = Policy(name="tiny", kind=PolicyKind.LOCAL)
        session.add(policy)
        session.flush()
        made = factories.make_checkpoint(session, policy)
        put_folder(tmp_path / "tiny", made.artifact)
        return f"{policy.id}:{made.id}"


def test_it_plays_a_move_after_a_persons(ada: TestClient, checkpoint: str) -> None:
    run_id = begin(ada)
    reply(ada, run_id, "1")
    ada.post(f"{PAGE}/{run_id}/policy", data={"policy": checkpoint, "moves": 1})
    work()
    seen = view(run_id)
    assert seen.state.phase in {PlayPhase.YOURS, PlayPhase.OVER}, seen.state.message  # untrained: it may be cut off
    assert (seen.state.done, seen.state.authors[0]) == (2, "")
    assert seen.state.authors[1].startswith("tiny, grpo step")
    assert seen.rollout.steps[1]["reply"]


def test_a_checkpoint_whose_files_are_gone_is_reported(ada: TestClient) -> None:
    with transaction() as session:
        policy = Policy(name="lost", kind=PolicyKind.LOCAL)
        session.add(policy)
        session.flush()
        key = f"{policy.id}:{factories.make_checkpoint(session, policy).id}"
    run_id = begin(ada)
    ada.post(f"{PAGE}/{run_id}/policy", data={"policy": key})
    work()
    seen = view(run_id)
    assert seen.state.phase is PlayPhase.STUCK
    assert "no artifact" in seen.state.message
    reply(ada, run_id, "3")
    assert view(run_id).state.phase is PlayPhase.OVER
