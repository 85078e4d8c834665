"""A rollout's page: conversation, rewards of each step, tokens, group, verdicts."""

import json
import re
import uuid
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import VerdictRecord
from backend.domain.vocabulary import PolicyKind, Verdict
from backend.settings import get_settings
from tests.factories import make_checkpoint, make_flag, make_policy, make_rollouts, make_run, make_step


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_each_turn_shows_what_it_earned(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    steps = [
        make_step(
            "I try <move>9</move>", {"invalid_move": 1.0}, action={"cell": 9}, done=False, note="Cell 9 is taken."
        ),
        make_step("<move>4</move>", {"win": 0.5}),
    ]
    messages = [
        {"role": "user", "content": "Board one"},
        {"role": "assistant", "content": "I try <move>9</move>"},
        {"role": "user", "content": "Board two"},
        {"role": "assistant", "content": "<move>4</move>"},
    ]
    rollout = make_rollouts(session, run, [[0.5, 1, 1]], steps=steps, messages=messages, turns=2, advantage=0.125)[0]
    html = viewer.get(f"/rollouts/{rollout.id}").text
    page = text_of(html)
    assert page.index("Board one") < page.index("I try") < page.index("Board two")
    assert "Cell 9 is taken." in page
    assert "invalid_move +1.00" in page
    assert "win +0.50" in page
    assert "+0.125" in page
    assert "0.600" in page


def test_a_failed_one_says_what_broke_and_has_no_reward(session: Session, viewer: TestClient) -> None:
    rollout = make_rollouts(session, make_run(session), [None])[0]
    page = text_of(viewer.get(f"/rollouts/{rollout.id}").text)
    assert "failed in the environment" in page
    assert "the board is on fire" in page
    assert "counts in no mean" in page
    assert viewer.get(f"/api/v1/rollouts/{rollout.id}").json()["reward"] is None


def test_it_leads_to_its_group_and_its_neighbours(session: Session, viewer: TestClient) -> None:
    made = make_rollouts(session, make_run(session), [[1, 1, 0]] * 4, group_size=2)
    html = viewer.get(f"/rollouts/{made[1].id}").text
    assert f'href="/rollouts/{made[0].id}" data-key="k"' in html
    assert f'href="/rollouts/{made[2].id}" data-key="j"' in html
    assert "2 rollouts of this task" in html


def test_tokens_are_shaded_by_their_probability(session: Session, viewer: TestClient) -> None:
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    checkpoint = make_checkpoint(session, policy)
    folder = Path(get_settings().artifacts_address) / checkpoint.artifact
    folder.mkdir(parents=True)
    vocabulary = {"model": {"vocab": {"Ġmove": 1, "<b>": 2}}, "added_tokens": [{"id": 3, "content": "<|end|>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    run = make_run(session, policy=policy)
    tokens = {"prompt": [5, 6], "completion": [1, 2, 3], "mask": [1, 0, 1], "logprobs": [-0.01, 0.0, -4.0]}
    rollout = make_rollouts(session, run, [[1, 1, 0]], tokens=tokens)[0]
    html = viewer.get(f"/rollouts/{rollout.id}").text
    assert '<span class="token" data-heat="0" title="99.0 %"> move</span>' in html
    assert '<span class="token" data-environment>&lt;b&gt;</span>' in html
    assert '<span class="token" data-heat="5" title="1.8 %">&lt;|end|&gt;</span>' in html
    assert "2 of the policy" in html
    assert "−2.005" in html


def test_a_reviewer_judges_it(session: Session, reviewer: TestClient, viewer: TestClient) -> None:
    run = make_run(session)
    rollout = make_rollouts(session, run, [[1, 1, 0]])[0]
    make_flag(session, run, rollout)
    sent = {"verdict": "hack", "comment": "ends early"}
    assert viewer.post(f"/rollouts/{rollout.id}/verdicts", data=sent).status_code == 403
    assert reviewer.post(f"/rollouts/{rollout.id}/verdicts", data=sent).status_code == 303
    assert session.scalars(select(VerdictRecord.verdict)).all() == [Verdict.HACK]
    page = text_of(viewer.get(f"/rollouts/{rollout.id}").text)
    assert "ends early" in page
    assert "The same eight words occur 12 times." in page
    assert reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "maybe"}).status_code == 422


@pytest.mark.parametrize("broken", [{"steps": [], "messages": []}, {"tokens": {"completion": []}}, {"opening": {}}])
def test_records_with_holes_still_stand(session: Session, viewer: TestClient, broken: dict[str, object]) -> None:
    rollout = make_rollouts(session, make_run(session), [[1, 1, 0]], **broken)[0]
    assert viewer.get(f"/rollouts/{rollout.id}").status_code == 200


def test_the_api_gives_it_whole_and_lists_filter(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    made = make_rollouts(session, run, [[1, 1, 0], [0, 1, 0], None])
    whole = viewer.get(f"/api/v1/rollouts/{made[0].id}").json()
    assert whole["columns"] == {"win": 1.0, "format": 1.0, "invalid_move": 0.0}
    assert whole["messages"][0]["role"] == "system"
    found = viewer.get(f"/api/v1/rollouts?run_id={run.id}&sort=-reward&limit=2").json()
    assert [item["id"] for item in found["items"]] == [str(made[0].id), str(made[1].id)]
    rest = viewer.get(f"/api/v1/rollouts?run_id={run.id}&sort=-reward&limit=2&after={found['next']}").json()
    assert [item["status"] for item in rest["items"]] == ["failed"]
    assert "messages" not in found["items"][0]
    assert viewer.get(f"/api/v1/rollouts?run_id={run.id}&sort=secret").status_code == 422
    assert viewer.get("/api/v1/rollouts").status_code == 422


def test_a_missing_one_is_not_found(viewer: TestClient) -> None:
    assert viewer.get(f"/rollouts/{uuid.UUID(int=1)}").status_code == 404
    assert viewer.get(f"/api/v1/rollouts/{uuid.UUID(int=1)}").status_code == 404
