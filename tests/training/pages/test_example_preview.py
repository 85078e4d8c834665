"""Training examples of a warm-up before the run: which rollouts are included, and the summary."""

import json
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RunKind, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.review.tables import VerdictRecord
from backend.runs.tables import Run
from backend.training.example_sources import conversations_of
from tests.factories import (
    make_environment_version,
    make_group,
    make_rollout,
    make_rollouts,
    make_run,
    make_step,
)

API = "/api/v1/training/examples"


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


@pytest.fixture
def run(session: Session, version: EnvironmentVersion) -> Run:
    """Four training tasks that were won or lost in turn, and one held-out task that was won."""
    run = make_run(session, version, name="a teacher's evaluation")
    for index in range(4):
        group = make_group(session, run, index=index, phase=Phase.TRAIN, step=0)
        make_rollout(session, run, group, [float(index % 2), 1.0, 0.0], messages=said(f"Board {index}?"))
    make_rollouts(session, run, [[1.0, 1.0, 0.0]], messages=said("Held out?"))
    return run


def said(asked: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "Play."},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "<move>4</move>"},
    ]


def look(client: TestClient, version: EnvironmentVersion, **sft: Any) -> dict[str, Any]:
    body = {"version_id": str(version.id), "configuration": {"sft": sft}}
    answer = client.post(f"{API}/preview", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def rollouts(client: TestClient, version: EnvironmentVersion, **sft: Any) -> dict[str, Any]:
    main: dict[str, Any] = look(client, version, source="rollouts", **sft)["sources"][0]
    return main


def test_rollouts_of_a_run_come_in_but_for_held_out_tasks(
    viewer: TestClient, version: EnvironmentVersion, run: Run
) -> None:
    found = rollouts(viewer, version, runs=[str(run.id)])
    assert found["available"] == 4
    assert any("held-out" in warning for warning in found["warnings"])
    assert found["statistics"]["tasks_by_level"] == {"0": 1, "1": 1, "2": 1, "3": 1}
    assert found["statistics"]["understood"] == 1.0
    assert len(found["examples"]) == 3


def test_a_filter_chooses_among_all_runs_of_the_environment(
    viewer: TestClient, session: Session, version: EnvironmentVersion, run: Run
) -> None:
    other = make_run(session, make_environment_version(session))
    make_rollout(session, other, make_group(session, other, phase=Phase.TRAIN, step=0), [1.0, 1.0, 0.0])
    found = rollouts(viewer, version, where="win = 1 and split = train")
    assert found["available"] == 2
    assert [each["name"] for each in found["runs"]] == [run.name]


def test_other_versions_come_in_with_a_warning(
    viewer: TestClient, session: Session, version: EnvironmentVersion, run: Run
) -> None:
    newer = make_environment_version(session, version.environment, number=2)
    found = rollouts(viewer, newer, where="win = 1")
    assert found["available"] == 2
    assert any("another version" in warning for warning in found["warnings"])


def test_runs_that_have_no_such_column_are_excluded_and_named(
    viewer: TestClient, session: Session, version: EnvironmentVersion, run: Run
) -> None:
    other = make_environment_version(session, version.environment, number=2, weights={"score": 1.0})
    odd = make_run(session, other, name="odd one")
    make_rollout(session, odd, make_group(session, odd, phase=Phase.TRAIN, step=0), [1.0])
    found = rollouts(viewer, version, where="win = 1")
    assert any("odd one" in warning for warning in found["warnings"])
    body = {"version_id": str(version.id), "configuration": {"sft": {"source": "rollouts", "where": "winn = 1"}}}
    answer = viewer.post(f"{API}/preview", json=body)
    assert answer.status_code == 422
    assert "There is no field `winn`" in answer.text


def test_what_was_judged_a_hack_never_comes_in(
    viewer: TestClient, session: Session, version: EnvironmentVersion, run: Run
) -> None:
    group = make_group(session, run, index=9, phase=Phase.TRAIN, step=0)
    bad = make_rollout(session, run, group, [1.0, 1.0, 0.0])
    session.add(VerdictRecord(run_id=run.id, rollout_id=bad.id, verdict=Verdict.HACK))
    session.flush()
    found = rollouts(viewer, version, runs=[str(run.id)])
    assert found["available"] == 4
    assert any("reviewed as a hack" in warning for warning in found["warnings"])


def test_replies_that_were_not_understood_are_counted(
    viewer: TestClient, session: Session, version: EnvironmentVersion
) -> None:
    run = make_run(session, version)
    group = make_group(session, run, phase=Phase.TRAIN, step=0)
    steps = [make_step("?", {}, action=None)]
    make_rollout(session, run, group, [0.0, 0.0, 0.0], messages=said("Board?"), steps=steps)
    found = rollouts(viewer, version, runs=[str(run.id)])
    assert found["statistics"]["understood"] == 0.0
    assert any("no parsed reply" in warning for warning in found["warnings"])


def test_what_a_tool_answered_reads_as_the_environments_words(
    viewer: TestClient, session: Session, version: EnvironmentVersion
) -> None:
    run = make_run(session, version)
    group = make_group(session, run, phase=Phase.TRAIN, step=0)
    messages = [
        *said("Board?"),
        {"role": "tool", "content": "free"},
        {"role": "assistant", "content": "<move>4</move>"},
    ]
    make_rollout(
        session, run, group, [1.0, 1.0, 0.0], messages=messages, steps=[make_step("a", {}), make_step("b", {})]
    )
    shown = rollouts(viewer, version, runs=[str(run.id)])["examples"][0]["messages"]
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("mode", ["think", "inline"])
def test_reasoning_is_learned_where_the_environment_separates_it(session: Session, mode: str) -> None:
    action = {"format": "tag", "tag": "move", "field": "cell", "type": "integer"}
    version = make_environment_version(session, agent={"system": "Play.", "action": action, "reasoning": mode})
    run = make_run(session, version)
    messages = said("Board?")
    messages[-1]["reasoning"] = "The center is free."
    group = make_group(session, run, phase=Phase.TRAIN, step=0)
    rollout = make_rollout(session, run, group, [1.0, 1.0, 0.0], messages=messages)
    [conversation] = conversations_of(session, [rollout.id])
    assert conversation.messages[-1].get("reasoning") == ("The center is free." if mode == "think" else None)
    assert conversation.reasoning == (mode == "inline")


def test_more_than_are_wanted_are_drawn_by_the_seed(viewer: TestClient, version: EnvironmentVersion, run: Run) -> None:
    found = rollouts(viewer, version, runs=[str(run.id)], most=2)
    assert found["available"] == 2
    assert any("random sample" in warning for warning in found["warnings"])


def test_a_run_of_another_environment_is_refused(
    viewer: TestClient, session: Session, version: EnvironmentVersion
) -> None:
    other = make_run(session)
    body = {"version_id": str(version.id), "configuration": {"sft": {"source": "rollouts", "runs": [str(other.id)]}}}
    answer = viewer.post(f"{API}/preview", json=body)
    assert answer.status_code == 422
    assert "No run of this environment" in answer.text


def test_a_script_is_shown_by_what_it_played_before(
    viewer: TestClient, session: Session, version: EnvironmentVersion
) -> None:
    before = look(viewer, version)["sources"][0]
    assert (before["available"], before["looked_at"]) == (4000, 0)
    run = make_run(session, version, kind=RunKind.TRAINING, configuration={"sft": {"script": "teacher"}})
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3, phase=Phase.WARM_UP)
    assert look(viewer, version)["sources"][0]["looked_at"] == 3
    assert look(viewer, version, script="nobody")["sources"][0]["warnings"]


def test_another_system_prompt_is_said_and_can_be_replaced(
    viewer: TestClient, trainer: TestClient, version: EnvironmentVersion
) -> None:
    row = {"messages": [{"role": "system", "content": "You are a bot."}, *said("Board?")[1:]]}
    sent = {"file": ("a.jsonl", json.dumps(row).encode())}
    file_id = trainer.post(API, files=sent).json()["id"]
    kept = look(viewer, version, source="file", file=file_id)
    assert any("another system prompt" in warning for warning in kept["sources"][0]["warnings"])
    replaced = look(viewer, version, source="file", file=file_id, system="environment")["sources"][0]
    assert replaced["warnings"] == []
    assert replaced["examples"][0]["messages"][0]["content"] == "Play."


def test_sources_are_mixed_by_share(viewer: TestClient, version: EnvironmentVersion, run: Run) -> None:
    found = look(viewer, version, also_rollouts=0.25, where="win = 1")
    assert [(each["source"], each["share"]) for each in found["sources"]] == [("script", 0.75), ("rollouts", 0.25)]


def test_the_page_shows_numbers_and_transcripts_or_what_is_missing(
    trainer: TestClient, version: EnvironmentVersion, run: Run
) -> None:
    fields = {"version_id": str(version.id), "sft.source": "rollouts", "sft.runs": str(run.id)}
    page = trainer.get("/training/examples/preview", params=fields)
    assert page.status_code == 200
    assert "Board 0?" in page.text or "Board 1?" in page.text
    assert "Stored rollouts" in trainer.post("/training/examples/preview", data=fields).text
    fields.pop("sft.runs")
    assert "select rollouts" in trainer.get("/training/examples/preview", params=fields).text


def test_a_choice_elsewhere_that_is_wrong_does_not_hide_the_training_examples(
    viewer: TestClient, version: EnvironmentVersion, run: Run
) -> None:
    body = {
        "version_id": str(version.id),
        "configuration": {"sft": {"source": "rollouts", "runs": [str(run.id)]}, "grpo": {"steps": "many"}},
    }
    assert viewer.post(f"{API}/preview", json=body).status_code == 200


def test_an_unknown_file_or_version_is_refused(viewer: TestClient, version: EnvironmentVersion) -> None:
    nowhere = str(uuid.uuid4())
    body = {"version_id": str(version.id), "configuration": {"sft": {"source": "file", "file": nowhere}}}
    assert viewer.post(f"{API}/preview", json=body).status_code == 422
    assert viewer.post(f"{API}/preview", json={"version_id": nowhere}).status_code == 422
