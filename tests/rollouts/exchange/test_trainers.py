"""What leaves for verl, SkyRL and prime-rl: their columns and files, with tokens, masks and where it comes from."""

import io
import json
import zipfile
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RunKind, Verdict
from backend.review.tables import VerdictRecord
from backend.rollouts.formats.trainers import pack
from backend.runs.tables import Run
from tests.factories import make_group, make_rollout
from tests.rollouts.exchange.rollouts import SAID, TOKENS, stored
from tests.rollouts.exchange.test_round_trip import exported

msgpack = pytest.importorskip("msgpack")  # a part of the development tools
WHOLE = [*TOKENS["prompt"], *TOKENS["completion"]]


def opened(api: TestClient, run: Run, kind: str, **query: Any) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(exported(api, run, kind, **query)))


def rows_of(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(archive.read(name))).to_pylist()
    return found


def test_verl_gets_prompts_conversations_and_the_tokens_of_the_rollout(api: TestClient, rich_run: Run) -> None:
    with opened(api, rich_run, "verl") as archive:
        assert set(archive.namelist()) == {"heldout.parquet", "README.md"}
        rows = rows_of(archive, "heldout.parquet")
        card = archive.read("README.md").decode()
    assert len(rows) == 5  # the failed one has no reward
    first, source, played = rows[0], rows[0]["extra_info"], [row["rollout"] for row in rows]
    assert first["prompt"] == [{"role": each["role"], "content": each["content"]} for each in SAID[:2]]
    assert first["messages"][2] == {
        "role": "assistant",
        "content": "<move>4</move>",
        "reasoning_content": "The middle is best.",
    }
    assert (played[0]["prompts"], played[0]["responses"]) == (TOKENS["prompt"], TOKENS["completion"])
    assert (played[0]["response_mask"], played[0]["rollout_log_probs"]) == (TOKENS["mask"], TOKENS["logprobs"])
    assert (first["data_source"], played[0]["score"]) == ("tictactoe@1", pytest.approx(1.14))
    assert (source["split"], source["index"], source["version"]) == ("heldout", 0, 1)
    assert source["content_hash"] in card
    assert json.loads(first["reward_model"]["ground_truth"])["index"] == 0
    assert played[0]["uid"] == played[1]["uid"] != played[2]["uid"]
    assert played[2]["responses"] is None


def test_skyrl_gets_the_columns_of_its_generator(api: TestClient, rich_run: Run) -> None:
    with opened(api, rich_run, "skyrl") as archive:
        rows = rows_of(archive, "heldout.parquet")
    first = rows[0]
    assert (first["env_class"], first["prompt"][1]["role"]) == ("tictactoe", "user")
    assert (first["prompt_token_ids"], first["response_ids"]) == (TOKENS["prompt"], TOKENS["completion"])
    assert (first["loss_masks"], first["rollout_logprobs"]) == (TOKENS["mask"], TOKENS["logprobs"])
    assert [row["stop_reasons"] for row in rows] == ["stop", "stop", "stop", "length", "stop"]


def test_prime_rl_gets_a_dataset_and_micro_batches(api: TestClient, rich_run: Run) -> None:
    with opened(api, rich_run, "prime_rl") as archive:
        rows = rows_of(archive, "data/heldout-00000-of-00001.parquet")
        batches = msgpack.unpackb(archive.read("heldout/rollouts/step_0/rank_0.bin"))
    assert [len(row["completion"]) for row in rows] == [3] * 5
    assert len(batches) == 2  # the rollouts with tokens
    ids, mask, advantages, logprobs, positions, lengths, temperatures, names, again = batches[0]
    assert ids == WHOLE
    assert mask == [False] * 3 + [bool(value) for value in TOKENS["mask"]]
    assert advantages == [0.0] * 3 + [0.25] * 3 + [0.0] * 2 + [-0.5] * 2  # credit by turn
    assert logprobs == [0.0] * 3 + TOKENS["logprobs"]
    assert (positions, lengths, again) == (list(range(10)), [10], [10])
    assert (temperatures, set(names)) == ([1.0] * 10, {"tictactoe"})


def test_an_evaluation_without_advantages_uses_the_groups_mean_and_a_batch_per_step(
    api: TestClient, rich_run: Run
) -> None:
    tokens = {name: TOKENS[name] for name in ("prompt", "completion", "mask", "logprobs")}
    with transaction() as session:
        run = session.get_one(Run, rich_run.id)
        run.kind = RunKind.TRAINING
        for step, rewards in ((2, (1.0, 0.0)), (1, (0.5, 0.5))):
            group = make_group(session, run, index=step, phase=Phase.TRAIN, step=step)
            for member, reward in enumerate(rewards):
                make_rollout(session, run, group, [reward, 0.0, 0.0], reward=reward, member=member, tokens=tokens)
    with opened(api, rich_run, "prime_rl", where="split = train") as archive:
        steps = [name for name in archive.namelist() if name.endswith(".bin")]
        batches = msgpack.unpackb(archive.read("train/rollouts/step_2/rank_0.bin"))
    assert steps == ["train/rollouts/step_1/rank_0.bin", "train/rollouts/step_2/rank_0.bin"]
    assert [batch[2][3] for batch in batches] == [0.5, -0.5]


def test_what_was_reviewed_as_a_hack_is_not_trained_on(api: TestClient, rich_run: Run) -> None:
    with transaction() as session:
        rollout = stored(rich_run.id)[0]
        session.add(VerdictRecord(run_id=rich_run.id, rollout_id=rollout.id, verdict=Verdict.HACK))
    with opened(api, rich_run, "verl") as archive:
        assert len(rows_of(archive, "heldout.parquet")) == 4


@pytest.mark.parametrize("value", [0, 127, 128, 2**40, -1, 1.5, True, "ä", [], [[1, "x"], [False, -2.5]]])
def test_packed_values_are_those_of_messagepack(value: object) -> None:
    assert msgpack.unpackb(pack(value)) == value
