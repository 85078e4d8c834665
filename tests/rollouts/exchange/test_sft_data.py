"""SFT data by filter: what is included, what is excluded, and the format."""

import io
import json
import zipfile
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, Verdict
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import make_flag, make_group, make_rollout, make_rollouts, make_run


@pytest.fixture
def run(session: Session) -> Run:
    """Two training tasks of three rollouts, one held-out task, every conversation its own."""
    run = make_run(session)
    for index in range(2):
        group = make_group(session, run, index=index, phase=Phase.TRAIN, step=0)
        for member, win in enumerate((0.0, 1.0, 0.5)):
            messages = said(f"Board {index}?", f"<move>{'abc'[member]}</move>")
            make_rollout(session, run, group, [win, 1.0, 0.0], member=member, messages=messages)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]], messages=said("Held out?", "<move>z</move>"))
    return run


def said(asked: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]


def preview(client: TestClient, run: Run, **wanted: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/sft", params={"run": str(run.id), **wanted})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def replies(client: TestClient, run: Run, **wanted: Any) -> list[str]:
    answer = client.get("/api/v1/sft/file", params={"run": str(run.id), "format": "jsonl", **wanted})
    rows = [json.loads(line) for line in answer.content.splitlines()]
    return sorted(row["messages"][-1]["content"] for row in rows)


def rollouts_of(session: Session, run: Run) -> list[Rollout]:
    return list(session.query(Rollout).filter(Rollout.run_id == run.id).order_by(Rollout.seq))


def test_held_out_tasks_are_excluded_and_counted(viewer: TestClient, run: Run) -> None:
    found = preview(viewer, run)
    assert (found["conversations"], found["heldout"]) == (6, 1)
    assert preview(viewer, run, heldout=True)["conversations"] == 7


def test_the_best_of_each_group(viewer: TestClient, run: Run) -> None:
    assert replies(viewer, run, best_of_group=True) == ["<move>b</move>"] * 2


def test_a_least_reward_and_a_filter_expression(viewer: TestClient, run: Run) -> None:
    assert preview(viewer, run, min_reward=0.7)["conversations"] == 4
    assert preview(viewer, run, where="win = 0.5")["conversations"] == 2
    assert preview(viewer, run, where="win = 0.5", min_reward=1)["conversations"] == 0


def test_what_was_judged_a_hack_never_comes_in_and_the_next_best_does(
    viewer: TestClient, session: Session, run: Run
) -> None:
    best = rollouts_of(session, run)[1]
    session.add(VerdictRecord(run_id=run.id, rollout_id=best.id, verdict=Verdict.HONEST))
    session.flush()
    assert preview(viewer, run, honest_only=True)["conversations"] == 1
    session.add(VerdictRecord(run_id=run.id, rollout_id=best.id, verdict=Verdict.HACK))
    session.flush()
    assert preview(viewer, run)["conversations"] == 5
    assert replies(viewer, run, best_of_group=True) == ["<move>b</move>", "<move>c</move>"]


def test_flagged_rollouts_can_be_kept_out(viewer: TestClient, session: Session, run: Run) -> None:
    make_flag(session, run, rollouts_of(session, run)[0])
    assert preview(viewer, run, without_flags=True)["conversations"] == 5


def test_a_conversation_that_came_already_is_excluded(viewer: TestClient, session: Session, run: Run) -> None:
    group = make_group(session, run, index=7, phase=Phase.TRAIN, step=0)
    same, near = said("Board  0?\n", "<move>a</move>"), said("Board 9?", "<move>a</move>")
    for member, messages in enumerate((same, near)):
        make_rollout(session, run, group, [0.0, 1.0, 0.0], member=member, messages=messages)
    found = preview(viewer, run)
    assert (found["conversations"], found["repeats"]) == (7, 1)
    assert found["near_repeats"] == 4  # tasks that differ in their number alone
    assert preview(viewer, run, repeats=True)["conversations"] == 8


def test_a_reply_that_was_not_understood_keeps_a_conversation_out_where_that_is_asked(
    viewer: TestClient, session: Session, run: Run
) -> None:
    rollout = rollouts_of(session, run)[0]
    rollout.steps = [{**rollout.steps[0], "action": None}]
    session.flush()
    assert preview(viewer, run, understood_only=True)["conversations"] == 5


def test_the_folder_holds_messages_as_trl_takes_them(viewer: TestClient, run: Run) -> None:
    answer = viewer.get("/api/v1/sft/file", params={"run": str(run.id), "format": "huggingface"})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        rows = pq.read_table(io.BytesIO(archive.read("data/train-00000-of-00001.parquet"))).to_pylist()
        card = archive.read("README.md").decode()
    assert len(rows) == 6
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant"]
    assert "split: train" in card
    assert run.name in card


def test_marking_lets_the_warm_up_learn_from_them_and_never_from_what_is_held_out(
    trainer: TestClient, session: Session, run: Run
) -> None:
    wanted = {"run": [str(run.id)], "min_reward": 0.7, "heldout": True}
    assert trainer.post("/api/v1/sft/demonstrations", json=wanted).json() == {"changed": 4}
    session.expire_all()
    assert [rollout.is_demonstration for rollout in rollouts_of(session, run)] == [0, 1, 1, 0, 1, 1, 0]
    assert trainer.post("/api/v1/sft/demonstrations", json={**wanted, "is_wanted": False}).json() == {"changed": 4}


def test_marking_needs_a_trainer(author: TestClient, run: Run) -> None:
    assert author.post("/api/v1/sft/demonstrations", json={"run": [str(run.id)]}).status_code == 403


def test_no_run_and_a_wrong_filter_are_refused(viewer: TestClient, run: Run) -> None:
    assert viewer.get("/api/v1/sft").status_code == 422
    assert viewer.get("/api/v1/sft", params={"run": str(run.id), "where": "nonsense ="}).status_code == 422
