"""Files of others become runs: what failed there is failed here, and a bad file leaves nothing."""

import io
import json
import struct
import zipfile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.domain.vocabulary import ErrorKind, PolicyKind, RolloutStatus, StopReason
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.formats.bounds import BadFile
from backend.rollouts.formats.reading import open_file, survey
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.rollouts.exchange.conftest import Import
from tests.rollouts.exchange.rollouts import lines, stored


def row_v0(example: int, reward: float, **fields: Any) -> dict[str, Any]:
    """As `vf-eval` 0.3.1 writes it."""
    return {
        "example_id": example,
        "prompt": [{"role": "system", "content": "Play."}, {"role": "user", "content": f"Board {example}?"}],
        "completion": [
            {"role": "assistant", "content": "<move>4</move>", "reasoning_content": "Hm.", "tool_calls": None}
        ],
        "reward": reward,
        "error": None,
        "metrics": {"win": reward, "format": 1.0, "num_turns": 1.0},
        "timing": {"model": {"duration": 0.5}, "env": {"duration": 0.25}},
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "token_usage": {"input_tokens": 20.0, "output_tokens": 6.0},
        **fields,
    }


OUTAGE = {
    "error": "ModelError",
    "message": "Connection refused",
    "error_chain_repr": "ModelError('Connection refused')",
    "error_chain_str": "ModelError -> ConnectError",
}
METADATA = {"env_id": "tic-tac-toe", "model": "acme/tiny", "sampling_args": {"temperature": 0.5, "max_tokens": 64}}


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "."), data)
    return buffer.getvalue()


def test_outages_that_verifiers_stored_as_zero_are_failed_without_a_reward(
    version: EnvironmentVersion, import_rollouts: Import
) -> None:
    rows = [row_v0(0, 1.0), row_v0(0, 0.0), row_v0(1, 0.0, error=OUTAGE, completion=None, metrics={}), row_v0(1, 1.0)]
    content = zipped(results__jsonl=lines(*rows), metadata__json=json.dumps(METADATA).encode())
    run = import_rollouts(content, "results.zip", environment="tictactoe")
    assert run["status"] == "completed", run["reason"]
    assert run["policy"] == "acme/tiny"
    first, second, failed, fourth = stored(run["id"])
    assert (failed.status, failed.reward, failed.columns) == (RolloutStatus.FAILED, None, None)
    assert (failed.error_kind, failed.error_message) == (ErrorKind.POLICY, "Connection refused")
    assert [first.reward, second.reward, fourth.reward] == [1.0, 0.0, 1.0]
    assert run["summary"]["reward"]["mean"] == pytest.approx(0.75)
    source = run["configuration"]["source"]
    assert (source["failed"], source["failed_stored_as_zero"], source["tool"]) == (1, 1, "verifiers 0.1 to 0.3")
    assert run["configuration"]["sampling"] == {"temperature": 0.5, "top_p": 1.0, "max_tokens_per_turn": 64}


@pytest.mark.slow
def test_metrics_that_the_environment_calls_so_become_its_columns(
    version: EnvironmentVersion, import_rollouts: Import
) -> None:
    run = import_rollouts(lines(row_v0(3, 0.5)), environment="tictactoe")
    [rollout] = stored(run["id"])
    assert run["columns"] == ["win"]
    assert run["configuration"]["source"]["columns_from"] == "metrics"
    assert (rollout.columns, rollout.metrics) == ([0.5], {"format": 1.0, "num_turns": 1.0})
    assert rollout.stop_reason is StopReason.MAX_TURNS
    assert (rollout.tokens_in, rollout.tokens_out, rollout.policy_seconds) == (20, 6, 0.5)
    assert rollout.messages[-1] == {"role": "assistant", "content": "<move>4</move>", "reasoning": "Hm."}
    assert rollout.steps[0]["reply"] == "<move>4</move>"
    assert (rollout.group.task.index, rollout.group.task.seed < 0) == (3, True)


def test_tasks_meet_those_played_here_only_when_that_is_said(
    version: EnvironmentVersion, import_rollouts: Import
) -> None:
    apart = import_rollouts(lines(row_v0(3, 0.5)), environment="tictactoe")
    shared = import_rollouts(lines(row_v0(3, 0.25)), environment="tictactoe", tasks="shared", split="train")
    [far], [near] = stored(apart["id"]), stored(shared["id"])
    assert near.group.task.seed == 3
    assert far.group.task_id != near.group.task_id


def test_an_episode_of_verifiers_0_4_comes_with_its_weights(
    version: EnvironmentVersion, import_rollouts: Import
) -> None:
    nodes = [
        {"message": {"role": "user", "content": "2 + 2?"}, "token_ids": [1, 2], "mask": [False, False]},
        {
            "parent": 0,
            "message": {"role": "assistant", "content": "4"},
            "sampled": True,
            "token_ids": [3, 4],
            "mask": [False, True],
            "logprobs": [-0.5],
        },
    ]
    trace = {
        "task": {"type": "T", "data": {"idx": 5}},
        "agent": {"config": {"model": "acme/small"}},
        "nodes": nodes,
        "calls": [{"node": 1, "usage": {"prompt_tokens": 3, "completion_tokens": 1}, "finish_reason": "stop"}],
        "rewards": {"exact": {"score": 1.0, "weight": 2.0}, "short": {"score": 0.5, "weight": 0.5}},
        "ok": True,
        "stop_condition": "agent_completed",
    }
    failed = {**trace, "rewards": {"exact": None}, "ok": False, "errors": [{"type": "ProviderError", "message": "429"}]}
    episodes = [{"env": {"id": "sums"}, "traces": [each]} for each in (trace, failed)]
    run = import_rollouts(lines(*episodes), "traces.jsonl", environment="tictactoe@1")
    good, bad = stored(run["id"])
    assert run["policy"] == "acme/small"
    assert dict(zip(run["columns"], run["weights"], strict=True)) == {"exact": 2.0, "short": 0.5}
    assert good.reward == pytest.approx(2.25)
    assert good.tokens == {"prompt": [1, 2, 3], "completion": [4], "mask": [1], "logprobs": [-0.5]}
    assert (bad.status, bad.reward, bad.error_kind) == (RolloutStatus.FAILED, None, ErrorKind.POLICY)


def test_a_plain_line_needs_only_messages_and_a_reward(version: EnvironmentVersion, import_rollouts: Import) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    run = import_rollouts(
        lines({"messages": said, "reward": 0.5}, {"messages": said, "error": "timed out"}),
        environment="tictactoe",
        policy="my agent",
    )
    good, bad = stored(run["id"])
    assert (run["policy"], run["columns"], good.columns) == ("my agent", ["reward"], [0.5])
    assert (bad.status, bad.reward) == (RolloutStatus.FAILED, None)


def test_a_table_of_others_is_read_too(version: EnvironmentVersion, import_rollouts: Import) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row_v0(0, 1.0), row_v0(1, 0.0)]), buffer)
    run = import_rollouts(buffer.getvalue(), "results.parquet", environment="tictactoe")
    assert run["status"] == "completed", run["reason"]
    assert [rollout.reward for rollout in stored(run["id"])] == [1.0, 0.0]
    assert run["policy"] == "external"


def test_the_same_file_twice_is_reported(version: EnvironmentVersion, api: TestClient, import_rollouts: Import) -> None:
    first = import_rollouts(lines(row_v0(0, 1.0)), environment="tictactoe")
    again = api.post(
        "/rollouts/import", files={"file": ("other.jsonl", lines(row_v0(0, 1.0)))}, data={"environment": "tictactoe"}
    )
    assert again.status_code == 409
    assert first["id"] in again.json()["detail"]


@pytest.mark.slow
def test_an_import_can_be_taken_back(version: EnvironmentVersion, api: TestClient, import_rollouts: Import) -> None:
    run = import_rollouts(lines(row_v0(0, 1.0)), environment="tictactoe", policy="gone")
    assert api.delete(f"/runs/{run['id']}").status_code == 204
    with transaction() as session:
        assert session.scalar(select(func.count(Run.id))) == 0
        assert session.scalar(select(func.count(Rollout.id))) == 0
        assert session.scalar(select(func.count(Policy.id)).where(Policy.kind == PolicyKind.EXTERNAL)) == 0
    assert import_rollouts(lines(row_v0(0, 1.0)), environment="tictactoe")["status"] == "completed"


def test_what_was_played_here_cannot_be_deleted(api: TestClient, rich_run: Run) -> None:
    assert api.delete(f"/runs/{rich_run.id}").status_code == 409


def test_a_zip_names_its_environment_too(version: EnvironmentVersion, import_rollouts: Import) -> None:
    metadata = json.dumps({**METADATA, "env_id": "acme/tictactoe"}).encode()
    run = import_rollouts(zipped(results__jsonl=lines(row_v0(0, 1.0)), metadata__json=metadata), "results.zip")
    assert (run["environment"], run["status"]) == ("tictactoe", "completed")


def test_a_file_that_names_no_environment_here_shows_the_next_step(
    version: EnvironmentVersion, api: TestClient
) -> None:
    answer = api.post("/rollouts/import", files={"file": ("a.jsonl", lines(row_v0(0, 1.0)))})
    assert answer.status_code == 422
    assert "proctor env import" in answer.json()["fields"]["version_id"]


DEEP = b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b', "reward": 1}\n'
BAD = {
    "no JSON": (b"hello\n", "line 1"),
    "a torn line": (lines(row_v0(0, 1.0)) + b'{"example_id": 1, "pro', "line 2"),
    "no reward": (lines(row_v0(0, 1.0), {**row_v0(1, 0.0), "reward": None}), "line 2: a completed rollout needs"),
    "a reward that is text": (lines({**row_v0(0, 0.0), "reward": "good"}), "line 1: reward"),
    "NaN": (b'{"messages": [{"role": "user", "content": "a"}], "reward": NaN}\n', "line 1"),
    "half a surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}], "reward": 1}\n', "line 1"),
    "nested without end": (DEEP, "line 1"),
    "another tool in the middle": (
        lines(row_v0(0, 1.0), {"messages": [{"role": "user", "content": "a"}], "reward": 1}),
        "line 2: plain JSONL",
    ),
    "nothing": (b"\n\n", "holds no rollouts"),
    "messages without a role": (
        lines({"messages": [{"content": "a"}], "reward": 1}),
        "line 1: messages: message 0 has no role",
    ),
    "the same place twice": (
        lines(*[{"messages": [], "reward": 1, "task": {"index": 0}, "group": 0, "member": 0}] * 2),
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what in BAD if what != "the same place twice"])
def test_a_bad_file_is_refused_with_the_line_and_leaves_nothing(
    version: EnvironmentVersion, api: TestClient, what: str
) -> None:
    content, why = BAD[what]
    answer = api.post("/rollouts/import", files={"file": ("a.jsonl", content)}, data={"environment": "tictactoe"})
    assert answer.status_code == 422, answer.text
    assert why in answer.json()["fields"]["file"]
    with transaction() as session:
        assert session.scalar(select(func.count(Run.id))) == 0


@pytest.mark.slow
def test_two_rollouts_in_one_place_fail_the_import_before_anything_is_stored(
    version: EnvironmentVersion, import_rollouts: Import
) -> None:
    run = import_rollouts(BAD["the same place twice"][0], environment="tictactoe")
    assert run["status"] == "failed"
    assert run["reason"].startswith("line 2: member 0")
    assert stored(run["id"]) == []


def test_a_bad_row_of_a_big_file_fails_the_import_and_leaves_nothing(
    version: EnvironmentVersion, import_rollouts: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.rollouts.imports.MAX_CHECKED_BYTES", 10)
    rows = [row_v0(index, 1.0) for index in range(600)]
    run = import_rollouts(lines(*rows) + b"{}\n", environment="tictactoe")
    assert run["status"] == "failed"
    assert run["reason"] == (
        "line 601: unknown format; a rollout has `messages` (or is a row of verifiers). Nothing was stored."
    )
    assert stored(run["id"]) == []


@pytest.mark.slow
def test_a_zip_that_unpacks_to_far_more_is_refused(tmp_path: Any) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("results.jsonl", "w") as file:
        for _ in range(100):
            file.write(b" " * 1024**2)
    with pytest.raises(BadFile, match="far more"):
        open_file(bomb, tmp_path)


def test_a_table_that_claims_too_much_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.rollouts.formats.bounds.MAX_ROW_GROUP", 1000)
    file = tmp_path / "big.parquet"
    pq.write_table(pa.table({"messages": ["a" * 100] * 1000, "reward": [1.0] * 1000}), file, use_dictionary=False)
    with pytest.raises(BadFile, match="refused"):
        survey(open_file(file, tmp_path))


@pytest.mark.parametrize("content", [b"PAR1" + struct.pack("<I", 7) + b"PAR1", b"PAR1", b"PK\x03\x04broken"])
def test_a_broken_table_or_zip_is_refused_with_a_message(tmp_path: Any, content: bytes) -> None:
    file = tmp_path / "broken"
    file.write_bytes(content)
    with pytest.raises(BadFile, match=r"cannot be read|can be read"):
        survey(open_file(file, tmp_path))
