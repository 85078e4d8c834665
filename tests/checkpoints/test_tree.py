"""Checkpoints as a tree over runs: on the page, in JSON, with the best explained."""

import uuid

import pytest
from sqlalchemy.orm import Session

from backend.checkpoints.tree import checkpoint_tree
from backend.domain.vocabulary import Role, RunKind
from tests.checkpoints.conftest import TrainedRun
from tests.factories import make_run
from tests.web_fixtures import ClientFor


def test_a_run_hangs_on_the_checkpoint_that_it_starts_from(session: Session, trained: TrainedRun):
    source, saved = trained(name="source")
    started, _ = trained(name="started", checkpoint_id=saved["grpo 40"].id)
    branched, _ = trained(name="branched", source_run_id=source.id, branch_step=50)
    trees, after = checkpoint_tree(session)
    assert after is None
    assert [tree.name for tree in trees] == ["source"]
    hanging = {leaf.step: [each.name for each in leaf.branches] for leaf in trees[0].checkpoints}
    assert hanging[40] == ["branched", "started"]  # step 50 has no checkpoint: the last one before
    assert {branch.run_id for branch in trees[0].family()} == {source.id, started.id, branched.id}


def test_a_run_whose_source_is_not_shown_shows_where_it_is_from(session: Session, trained: TrainedRun):
    _, saved = trained(name="source")
    started, _ = trained(name="started", checkpoint_id=saved["grpo 40"].id)
    trees, _ = checkpoint_tree(session, policy_id=started.policy_id)
    assert [tree.name for tree in trees] == ["started"]
    assert trees[0].origin is not None
    assert (trees[0].origin.run, trees[0].origin.step) == ("source", 40)


def test_a_run_is_shown_among_its_relatives_only(session: Session, trained: TrainedRun):
    source, saved = trained(name="source")
    started, _ = trained(name="started", checkpoint_id=saved["grpo 40"].id)
    trained(name="other")
    for run in (source, started):
        trees, _ = checkpoint_tree(session, run_id=run.id)
        assert {branch.name for tree in trees for branch in tree.family()} == {"source", "started"}


def test_the_best_states_why(session: Session, trained: TrainedRun):
    trained(steps=(160, 200), rewards=(0.662, 0.683))
    trees, _ = checkpoint_tree(session)
    best = next(leaf for leaf in trees[0].checkpoints if leaf.why_best)
    assert best.why_best == "highest held-out reward 0.683 [0.643, 0.723], 0.021 above step 160"


def test_pages_walk_on_by_runs(session: Session, trained: TrainedRun):
    for number in range(3):
        trained(name=f"run {number}")
    first, after = checkpoint_tree(session, limit=2)
    rest, end = checkpoint_tree(session, after=after, limit=2)
    assert [tree.name for tree in (*first, *rest)] == ["run 2", "run 1", "run 0"]
    assert end is None


def test_the_page_shows_the_tree_with_intervals_sizes_and_reasons(
    session: Session, trained: TrainedRun, client_for: ClientFor
):
    run, saved = trained(name="learner", rewards=(0.5, 0.6, 0.4))
    trained(name="branch", source_run_id=run.id, branch_step=40)
    page = client_for(Role.TRAINER).get("/checkpoints").text
    for shown in ("learner", "branch", "0.600", "[0.560, 0.640]", "one of the latest", "0.100 above step 20", "8 B"):
        assert shown in page
    assert f"/checkpoints/prune?checkpoint_ids={saved['grpo 20'].id}" in page
    assert "Prune" not in client_for(Role.VIEWER).get("/checkpoints").text


def test_filters_choose_environment_policy_and_what_is_shown(
    session: Session, trained: TrainedRun, client_for: ClientFor
):
    one, _ = trained(name="first run", rewards=(0.5, 0.6, 0.4))
    other, _ = trained(name="second run")
    client = client_for(Role.VIEWER)
    assert "second run" not in client.get(f"/checkpoints?environment={one.version.environment.name}").text
    assert "first run" not in client.get(f"/checkpoints?policy={other.policy_id}").text
    assert "No matching checkpoints" in client.get(f"/checkpoints?policy={uuid.uuid4()}").text
    best = client.get(f"/checkpoints?show=best&policy={one.policy_id}").text
    assert "0.600" in best
    assert "0.500" not in best


def test_a_run_has_a_tab_with_its_tree(session: Session, trained: TrainedRun, client_for: ClientFor):
    run, _ = trained(name="learner", rewards=(0.5, 0.6, 0.4))
    client = client_for(Role.VIEWER)
    assert f"/runs/{run.id}/checkpoints" in client.get(f"/runs/{run.id}").text
    page = client.get(f"/runs/{run.id}/checkpoints").text
    assert "0.100 above step 20" in page
    evaluation = make_run(session, kind=RunKind.EVALUATION)
    assert "No checkpoints yet" in client.get(f"/runs/{evaluation.id}/checkpoints").text


def test_the_same_through_json(session: Session, trained: TrainedRun, client_for: ClientFor):
    run, saved = trained(name="learner", rewards=(0.5, 0.6, 0.4))
    trained(name="branch", source_run_id=run.id, branch_step=40)
    client = client_for(Role.VIEWER)
    tree = client.get("/api/v1/checkpoints/tree").json()["trees"][0]
    assert (tree["name"], tree["rule"], tree["stored_bytes"], tree["prunable_bytes"]) == (
        "learner",
        "the best, the latest 1",
        40,
        8,
    )
    leaf = tree["checkpoints"][3]
    assert leaf["why_best"].startswith("highest held-out reward 0.600")
    assert leaf["heldout_interval"] == pytest.approx([0.56, 0.64])
    assert leaf["branches"][0]["origin"]["step"] == 40
    listed = client.get(f"/api/v1/checkpoints?run_id={run.id}").json()["items"]
    assert [each["kept_by"] for each in listed] == [["last"], ["best", "branched"], [], ["warm_up"], ["untrained"]]
    found = client.get(f"/api/v1/checkpoints/{saved['grpo 20'].id}").json()
    assert found["kept_by"] == []


def test_hostile_names_are_escaped(session: Session, trained: TrainedRun, client_for: ClientFor):
    trained(name="<script>alert(1)</script>")
    assert "<script>alert" not in client_for(Role.VIEWER).get("/checkpoints").text
