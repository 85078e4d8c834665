"""A leaderboard ranks only runs on the same held-out tasks, and states why others are excluded."""

import csv
import io
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.vocabulary import PolicyKind, Role, RunKind, RunStatus, Split
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from tests.factories import (
    make_checkpoint,
    make_environment_version,
    make_member,
    make_policy,
    make_rollouts,
    make_run,
)


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def plan(**fields: Any) -> dict[str, Any]:
    return EvaluationPlan(tasks=100, **fields).model_dump(mode="json")


def sat(
    session: Session, version: EnvironmentVersion, name: str, mean: float, half: float = 0.05, **fields: Any
) -> Run:
    """A finished evaluation with these final figures."""
    kind = fields.pop("policy_kind", PolicyKind.OPENAI_API)
    policy = fields.pop("policy", None) or make_policy(session, name, kind, fields.pop("policy_configuration", None))
    completed, rollouts = fields.pop("completed", None), fields.pop("rollouts", 100)
    summary = {
        "reward": {"mean": mean, "low": mean - half, "high": mean + half, "count": 100},
        "success": {"rule": "win >= 1", "mean": mean, "low": mean - half, "high": mean + half, "count": 100},
        "rollouts": rollouts,
        "completed": rollouts if completed is None else completed,
        "tokens_in": 4000,
        "tokens_out": 1000,
        "cost": 0.5,
        "priced": 100,
    }
    return make_run(session, version, policy, **{"configuration": plan(), "summary": summary, **fields})


def board(client: TestClient, version: EnvironmentVersion, /, **query: Any) -> dict[str, Any]:
    answer = client.get(f"/api/v1/leaderboards/{version.environment.name}", params=query)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_overlapping_intervals_share_ranks(session: Session, viewer: TestClient, version: EnvironmentVersion) -> None:
    for name, mean in (("first", 0.9), ("second", 0.6), ("third", 0.55), ("last", 0.2)):
        sat(session, version, name, mean)
    ranked = board(viewer, version)["ranked"]
    assert [(row["name"], row["rank"], row["worst_rank"]) for row in ranked] == [
        ("first", 1, 1),
        ("second", 2, 3),
        ("third", 2, 3),
        ("last", 4, 4),
    ]
    assert (ranked[0]["tokens"], ranked[0]["cost"], ranked[0]["total_cost"]) == (50, 0.005, 0.5)
    page = viewer.get(f"/leaderboards/{version.environment.name}").text
    assert "2–3" in page
    assert "Compare the top two" in page


def test_another_heldout_evaluation_is_not_ranked_with_them(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    sat(session, version, "one", 0.5)
    sat(session, version, "two", 0.6)
    sat(session, version, "groups", 0.9, configuration=plan(group_size=4), rollouts=400)
    sat(session, version, "later", 0.9, configuration=plan(first_task=100))
    sat(session, version, "longer", 0.9, configuration=plan(sampling=Sampling(max_tokens_per_turn=512)))
    found = board(viewer, version)
    assert [row["name"] for row in found["ranked"]] == ["two", "one"]
    reasons = {row["name"]: row["reason"] for row in found["apart"]}
    assert reasons["groups"].startswith("other group size")
    assert reasons["later"].startswith("other tasks")
    assert reasons["longer"].startswith("other token limit")
    other = next(exam["key"] for exam in found["exams"] if "4 per task" in exam["label"])
    assert [row["name"] for row in board(viewer, version, exam=other)["ranked"]] == ["groups"]


def test_too_little_of_it_is_not_ranked(session: Session, viewer: TestClient, version: EnvironmentVersion) -> None:
    sat(session, version, "whole", 0.5)
    sat(session, version, "nearly", 0.6, completed=96)
    sat(session, version, "half", 0.9, completed=50)
    sat(session, version, "stopped", 0.9, status=RunStatus.STOPPED, completed=99)
    sat(session, version, "running", 0.9, status=RunStatus.RUNNING)
    found = board(viewer, version)
    assert [(row["name"], row["coverage"]["completed"]) for row in found["ranked"]] == [("nearly", 96), ("whole", 100)]
    assert {row["name"]: row["reason"] for row in found["apart"]} == {
        "half": "only 50 of 100 completed",
        "stopped": "stopped: 99 of 100 completed",
    }
    assert "96 of 100" in text_of(viewer.get(f"/leaderboards/{version.environment.name}").text)


def test_a_contender_is_a_policy_with_checkpoint_and_temperature(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    policy = make_policy(session, "mine", PolicyKind.LOCAL)
    for step, mean in ((10, 0.5), (20, 0.7)):
        sat(session, version, "", mean, policy=policy, checkpoint=make_checkpoint(session, policy, step=step))
    sampled = make_policy(session, "model", PolicyKind.OPENAI_API)
    sat(session, version, "", 0.1, policy=sampled)
    sat(session, version, "", 0.4, policy=sampled)
    sat(session, version, "", 0.6, policy=sampled, configuration=plan(sampling=Sampling(temperature=0)))
    ranked = board(viewer, version)["ranked"]
    assert [(row["name"], row["temperature"], row["runs"]) for row in ranked] == [
        ("mine grpo 20", 1.0, 1),
        ("model", 0.0, 1),
        ("mine grpo 10", 1.0, 1),
        ("model", 1.0, 2),
    ]
    assert ranked[3]["reward"]["mean"] == 0.4


def test_baselines_scripts_imports_and_rescores_are_marked(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    longer = plan(sampling=Sampling(max_tokens_per_turn=512))
    sat(session, version, "model", 0.6, configuration=longer)
    sat(session, version, "chance", 0.3, policy_kind=PolicyKind.SCRIPTED)
    gold = {"script": "gold"}
    sat(session, version, "best", 1.0, policy_kind=PolicyKind.SCRIPTED, policy_configuration=gold)
    sat(session, version, "elsewhere", 0.5, policy_kind=PolicyKind.EXTERNAL, configuration={})
    unsampled = {"split": "heldout", "tasks": 100, "first_task": 0, "group_size": 1}
    sat(session, version, "unsampled", 0.5, policy_kind=PolicyKind.EXTERNAL, configuration=unsampled)
    sat(session, version, "imported", 0.9, policy_kind=PolicyKind.EXTERNAL, configuration=longer)
    sat(session, version, "again", 0.8, kind=RunKind.RESCORE)
    found = board(viewer, version)
    assert [(row["name"], row["mark"]) for row in found["ranked"]] == [
        ("best", "script"),
        ("imported", "imported"),
        ("model", ""),
        ("chance", "baseline"),
    ]
    assert {row["name"]: row["mark"] for row in found["apart"]} == {
        "elsewhere": "imported",
        "unsampled": "imported",
        "again": "re-scored",
    }
    assert len(found["exams"]) == 1


def test_it_is_exported_and_no_name_becomes_a_formula(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    sat(session, version, "=HYPERLINK(1)", 0.5)
    sat(session, version, "half", 0.9, completed=50)
    answer = viewer.get(f"/leaderboards/{version.environment.name}/export.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["content-type"].startswith("text/csv")
    assert [row["name"] for row in rows] == ["'=HYPERLINK(1)", "half"]
    assert (rows[0]["rank"], rows[0]["reward"], rows[1]["reason"]) == ("1", "0.5", "only 50 of 100 completed")


def test_the_newest_version_that_was_evaluated_is_shown(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    sat(session, version, "one", 0.5)
    newer = make_environment_version(session, version.environment, number=2)
    assert board(viewer, version)["version"] == 1
    empty = board(viewer, version, version=2)
    assert (empty["version"], empty["exam"], empty["ranked"]) == (newer.number, None, [])
    address = f"/leaderboards/{version.environment.name}"
    assert "No evaluations of this version yet" in viewer.get(f"{address}?version=2").text
    assert viewer.get(f"/api/v1{address}?version=9").status_code == 404
    assert viewer.get("/leaderboards/nothing").status_code == 404


def test_all_leaderboards_are_listed(session: Session, viewer: TestClient, version: EnvironmentVersion) -> None:
    assert "No evaluations yet" in viewer.get("/leaderboards").text
    sat(session, version, "one", 0.5)
    assert f"/leaderboards/{version.environment.name}?version=1" in viewer.get("/leaderboards").text


def test_scores_are_normalized_between_floor_and_gold(session: Session, viewer: TestClient) -> None:
    version = make_environment_version(session, checks={"floor_maximum": 0.2, "gold_minimum": [1.0, 0.9, 0.9, 0.8]})
    sat(session, version, "good", 0.55)
    sat(session, version, "poor", 0.1)
    sat(session, version, "other sum", 0.5, columns=["win"], weights=[1.0])
    found = board(viewer, version)
    assert found["scale"] == pytest.approx({"floor": 0.2, "gold": 0.9})
    normalized = {row["name"]: row["normalized"] for row in found["ranked"]}
    assert normalized["good"] == pytest.approx({"mean": 0.5, "low": 0.3 / 0.7, "high": 0.4 / 0.7, "count": 100})
    assert (normalized["poor"]["mean"], normalized["poor"]["high"]) == (0.0, 0.0)
    assert normalized["other sum"] is None
    assert "normalized" in viewer.get(f"/leaderboards/{version.environment.name}").text
    rows = csv.DictReader(io.StringIO(viewer.get(f"/leaderboards/{version.environment.name}/export.csv").text))
    assert float(next(rows)["normalized"]) == pytest.approx(0.5)


def test_first_unaided_episodes_of_people_are_a_baseline(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    sat(session, version, "model", 0.5, configuration=plan() | {"tasks": 2}, rollouts=2)
    human = make_policy(session, "human", PolicyKind.HUMAN)
    ada, bob, cleo = (make_member(session, role).person_id for role in (Role.AUTHOR, Role.REVIEWER, Role.TRAINER))

    def play(person: Any, index: int, win: float, seed: int | None = None, **fields: Any) -> None:
        usual = task_of(version.typed_manifest, Split.HELDOUT, index).seed
        configuration = {"split": "heldout", "index": index}
        given = {"kind": RunKind.PLAY, "created_by": person, "configuration": configuration, **fields}
        run = make_run(session, version, human, seed=usual if seed is None else seed, **given)
        make_rollouts(session, run, [[win] * len(run.columns)])

    play(ada, 0, 1.0)
    play(ada, 0, 0.0)  # knew the task
    play(bob, 0, 0.0)
    play(bob, 1, 1.0, progress={"phase": "over", "is_assisted": True})
    play(ada, 1, 1.0, progress={"phase": "over", "authors": ["", "gold"]})
    play(ada, 2, 1.0)  # not a task of the evaluation
    [row] = board(viewer, version)["apart"]
    assert (row["name"], row["mark"], row["policy_kind"], row["runs"]) == ("human", "by hand", "human", 2)
    assert row["reason"] == "people played 1 of these tasks"
    whole = sum(column.weight for column in version.typed_manifest.columns)
    assert row["reward"]["mean"] == pytest.approx(whole / 2)
    play(cleo, 1, 1.0)
    ranked = board(viewer, version)["ranked"]
    assert {row["name"] for row in ranked} == {"model", "human"}
    page = viewer.get(f"/leaderboards/{version.environment.name}").text
    assert "3 episodes" in page
    assert "Compare the top two" not in page  # a person's episodes are no run


def test_games_against_other_opponents_are_not_ranked_together(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    rival = {"policy_id": str(make_policy(session).id), "name": "rival"}
    sat(session, version, "one", 0.5, configuration=plan(opponent=rival))
    sat(session, version, "two", 0.6, configuration=plan(opponent=rival))
    sat(session, version, "three", 0.7)
    found = board(viewer, version)
    assert [row["name"] for row in found["ranked"]] == ["two", "one"]
    assert found["exam"]["label"].startswith("100 held-out tasks against rival")
    assert found["apart"][0]["reason"].startswith("other opponent")
    assert board(viewer, version, exam=found["exams"][1]["key"])["ranked"][0]["name"] == "three"
