"""Rollouts are stored once, in order, whatever they contain and whichever other writers are active."""

import threading
import uuid
from collections.abc import Callable

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import undefer

from backend.core.session import get_engine, transaction
from backend.domain.ids import stable_id
from backend.domain.vocabulary import Phase, RolloutStatus
from backend.rollouts.tables import Group, Rollout, Task
from tests.runs.recording.conftest import make_failed, make_rollout, run_of
from workers.storage.recorder import RunRecorder


def _rows(run_id: uuid.UUID) -> list[Rollout]:
    everything = (undefer(Rollout.steps), undefer(Rollout.messages), undefer(Rollout.opening), undefer(Rollout.tokens))
    with transaction() as session:
        query = select(Rollout).where(Rollout.run_id == run_id).order_by(Rollout.seq).options(*everything)
        return list(session.scalars(query))


def test_a_rollout_comes_back_as_it_was(recorder: RunRecorder) -> None:
    rollout = make_rollout(
        5, 1, prompt_token_ids=[1], completion_token_ids=[2, 3], completion_mask=[1, 0], logprobs=[-0.5, 0]
    )
    assert recorder.store([rollout]) == 1
    [row] = _rows(recorder.run_id)
    group = stable_id("group", recorder.run_id, "evaluation", None, 5)
    assert (row.id, row.group_id, row.member) == (stable_id("rollout", group, 1), group, 1)
    assert (row.seq, row.level, row.status, row.stop_reason) == (1, 1, "completed", "done")
    assert row.columns == [1.0, 1.0, 1.0]
    assert row.reward == pytest.approx(1.1)
    assert row.steps[0] == {
        "reply": "<move>4</move>",
        "action": {"cell": 4},
        "observation": {"board": "....X...."},
        "text": "Board?",
        "rewards": {"win": 1.0},
        "done": True,
        "note": None,
        "policy_seconds": 0.01,
        "environment_seconds": 0.001,
        "queue_seconds": 0.0,
        "calls": None,
        **dict.fromkeys(("tokens_in", "tokens_out", "tokens_cached", "cost")),
    }
    assert row.messages == rollout.messages
    assert row.opening == {"board": "........."}
    assert (row.excerpt, row.turns, row.tokens_out) == ("<move>4</move>", 1, 3)
    assert row.tokens == {"prompt": [1], "completion": [2, 3], "mask": [1, 0], "logprobs": [-0.5, 0.0]}
    with transaction() as session:
        task = session.get_one(Group, group).task_id
        assert session.get_one(Task, task).seed == 5


def test_waiting_cost_and_origin_are_kept(recorder: RunRecorder) -> None:
    origin = uuid.uuid4()
    recorder.store([make_rollout(queue_seconds=1.5, cost=0.25, source_id=origin)])
    [row] = _rows(recorder.run_id)
    assert (row.queue_seconds, row.cost, row.source_id) == (1.5, 0.25, origin)


def test_log_probabilities_of_an_endpoint_are_kept_as_text(recorder: RunRecorder) -> None:
    recorder.store([make_rollout(token_texts=["<move>", "4"], logprobs=[-0.1, -0.2], token_turns=[0])])
    [row] = _rows(recorder.run_id)
    assert row.tokens == {"texts": ["<move>", "4"], "logprobs": [-0.1, -0.2], "turns": [0]}


def test_columns_follow_the_runs_order(start_run: Callable[..., uuid.UUID]) -> None:
    recorder = RunRecorder(start_run(columns=["invalid_move", "win"], weights=[-0.1, 1.0]))
    recorder.store([make_rollout(columns={"win": 0.5, "invalid_move": 2.0})])
    assert _rows(recorder.run_id)[0].columns == [2.0, 0.5]


def test_storing_again_changes_nothing(recorder: RunRecorder) -> None:
    rollouts = [make_rollout(group, member) for group in range(3) for member in range(2)]
    assert recorder.store(rollouts) == 6
    before = [(row.id, row.seq) for row in _rows(recorder.run_id)]
    assert recorder.store(rollouts) == 0
    assert recorder.store([*rollouts, make_rollout(9)]) == 1
    assert [(row.id, row.seq) for row in _rows(recorder.run_id)] == [*before, (_rows(recorder.run_id)[-1].id, 7)]
    assert run_of(recorder.run_id).next_seq == 8


def test_a_failed_one_has_no_reward_and_gives_place_to_its_next_attempt(recorder: RunRecorder) -> None:
    recorder.store([make_failed(0), make_rollout(1)])
    failed = _rows(recorder.run_id)[0]
    assert (failed.reward, failed.columns, failed.error_kind) == (None, None, "sandbox")
    assert recorder.store([make_rollout(0)]) == 1
    rows = _rows(recorder.run_id)
    assert [(row.seq, row.status) for row in rows] == [(2, "completed"), (3, "completed")]
    assert rows[1].id == failed.id


def test_the_same_rollout_twice_in_a_batch_is_stored_once(recorder: RunRecorder) -> None:
    assert recorder.store([make_rollout(0), make_rollout(0)]) == 1


def test_steps_of_training_are_different_groups(recorder: RunRecorder) -> None:
    rollouts = [make_rollout(0)]
    for step in (1, 2):
        rollout = make_rollout(0, training_step=step, advantage=0.5)
        rollout.phase = Phase.TRAIN
        rollouts.append(rollout)
    assert recorder.store(rollouts) == 3
    with transaction() as session:
        assert session.scalar(select(func.count(Group.id)).where(Group.run_id == recorder.run_id)) == 3
        assert session.scalar(select(func.count(Task.id))) == 1


@pytest.mark.slow
def test_a_follower_of_the_sequence_misses_nothing_with_concurrent_writers(recorder: RunRecorder) -> None:
    writers = [
        threading.Thread(target=_store_one_by_one, args=(recorder.run_id, range(first, first + 40)))
        for first in (0, 100, 200, 300)
    ]
    for writer in writers:
        writer.start()
    seen: list[uuid.UUID] = []
    last = 0
    while any(writer.is_alive() for writer in writers) or not seen:
        last = _follow(recorder.run_id, last, seen)
    _follow(recorder.run_id, last, seen)
    assert len(seen) == len(set(seen)) == 160
    assert run_of(recorder.run_id).next_seq == 161


def _store_one_by_one(run_id: uuid.UUID, groups: range) -> None:
    recorder = RunRecorder(run_id)
    for group in groups:
        recorder.store([make_rollout(group)])


def _follow(run_id: uuid.UUID, last: int, seen: list[uuid.UUID]) -> int:
    with transaction() as session:
        query = (
            select(Rollout.id, Rollout.seq).where(Rollout.run_id == run_id, Rollout.seq > last).order_by(Rollout.seq)
        )
        for row in session.execute(query):
            seen.append(row.id)
            last = row.seq
    return last


def test_writers_of_the_same_rollouts_store_each_once(recorder: RunRecorder) -> None:
    writers = [threading.Thread(target=_store_one_by_one, args=(recorder.run_id, range(30))) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [row.seq for row in _rows(recorder.run_id)] == list(range(1, 31))


def test_runs_that_share_tasks_do_not_hold_each_other_up(start_run: Callable[..., uuid.UUID]) -> None:
    first = start_run()
    second = start_run()
    with transaction() as session:
        session.execute(
            text("UPDATE runs SET version_id = (SELECT version_id FROM runs WHERE id = :first) WHERE id = :second"),
            {"first": first, "second": second},
        )
    forward = threading.Thread(target=lambda: RunRecorder(first).store([make_rollout(i) for i in range(200)]))
    backward = threading.Thread(
        target=lambda: RunRecorder(second).store([make_rollout(i) for i in reversed(range(200))])
    )
    forward.start()
    backward.start()
    forward.join()
    backward.join()
    assert len(_rows(first)) == len(_rows(second)) == 200


HOSTILE = {
    "nul": "a\x00b",
    "half": "a\ud800b",
    "pair": "\ud83d\ude00",
    "copy": "\\.\n\t\\N\r",
    "escape": "\\u0000",
    "quotes": "\"';--",
    "last": "\uffff\U0010ffff",
}


@pytest.mark.parametrize("text_", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_stored(recorder: RunRecorder, text_: str) -> None:
    rollout = make_rollout(0, text=text_, error_message=text_)
    rollout.steps[0].action = {text_: text_}
    rollout.opening = {"deep": [{text_: [text_]}]}
    assert recorder.store([rollout]) == 1
    [row] = _rows(recorder.run_id)
    expected = {"nul": "a\N{SYMBOL FOR NULL}b", "half": "a\N{REPLACEMENT CHARACTER}b", "pair": "\N{GRINNING FACE}"}
    shown = expected.get(next(name for name, value in HOSTILE.items() if value == text_), text_)
    assert row.steps[0]["reply"] == row.messages[1]["content"] == row.excerpt == row.error_message == shown
    assert row.steps[0]["action"] == {shown: shown}
    assert row.opening == {"deep": [{shown: [shown]}]}


def test_numbers_that_do_not_fit_are_made_to_fit(recorder: RunRecorder) -> None:
    nested: object = "core"
    for _ in range(2000):
        nested = [nested]
    columns = {"win": 1e300, "format": 1e-300, "invalid_move": -1e39}
    rollout = make_rollout(columns=columns, reward=-1e300, metrics={"odd": float("nan")}, advantage=float("inf"))
    rollout.steps[0].action = {"large": 10**40, "nested": nested}
    assert recorder.store([rollout]) == 1
    [row] = _rows(recorder.run_id)
    assert row.columns == pytest.approx([3.4e38, 0.0, -3.4e38])
    assert row.reward == pytest.approx(-3.4e38)
    assert row.metrics == {"odd": None}
    assert row.advantage is None
    assert row.steps[0]["action"]["large"] == 10**40


def test_one_notification_a_batch(recorder: RunRecorder) -> None:
    with get_engine().connect() as listening:
        driver = listening.connection.driver_connection
        assert driver is not None
        listening.execute(text("LISTEN proctor"))
        listening.commit()
        recorder.store([make_rollout(group) for group in range(50)])
        heard = [notification.payload for notification in driver.notifies(timeout=0.5)]
    assert heard == [f"run:{recorder.run_id}"]


def test_a_failed_one_stays_when_it_fails_again(recorder: RunRecorder) -> None:
    recorder.store([make_failed(0)])
    recorder.store([make_failed(0)])
    assert [row.status for row in _rows(recorder.run_id)] == [RolloutStatus.FAILED]
