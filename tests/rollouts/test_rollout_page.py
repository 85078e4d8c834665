"""A rollout's page: conversation, rewards of each step, tokens, group, verdicts."""

import json
import re
import uuid
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.environments.tools import write_call
from backend.domain.vocabulary import PolicyKind, Verdict
from backend.review.tables import VerdictRecord
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


def test_a_failed_one_shows_what_broke_and_has_no_reward(session: Session, viewer: TestClient) -> None:
    rollout = make_rollouts(session, make_run(session), [None])[0]
    page = text_of(viewer.get(f"/rollouts/{rollout.id}").text)
    assert "failed in the environment" in page
    assert "the board is on fire" in page
    assert "not part of any mean" in page
    assert viewer.get(f"/api/v1/rollouts/{rollout.id}").json()["reward"] is None


def test_it_leads_to_its_group_and_its_neighbors(session: Session, viewer: TestClient) -> None:
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
    assert '<span class="token" data-heat="0" title="99.0%"> move</span>' in html
    assert '<span class="token" data-environment>&lt;b&gt;</span>' in html
    assert '<span class="token" data-heat="5" title="1.8%">&lt;|end|&gt;</span>' in html
    assert "2 of the policy" in html
    assert "−2.005" in html


def test_credit_by_turn_is_reported_next_to_the_advantage(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    tokens = {"prompt": [1], "completion": [2, 3, 4], "mask": [1, 0, 1], "logprobs": [-0.1, 0.0, -0.2]}
    told = {**tokens, "turn_advantages": [0.25, -0.5]}
    by_turn = make_rollouts(session, run, [[1, 1, 0]], tokens=told, advantage=0.25)[0]
    assert "by turn +0.25, −0.50" in text_of(viewer.get(f"/rollouts/{by_turn.id}").text)
    other = make_run(session)
    whole = make_rollouts(session, other, [[1, 1, 0]], tokens=tokens, advantage=0.25)[0]
    assert "by turn" not in viewer.get(f"/rollouts/{whole.id}").text


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


def test_reasoning_is_folded_and_several_calls_stand_with_their_answers(session: Session, viewer: TestClient) -> None:
    calls = [write_call("look", {"at": "Oslo"}), write_call("look", {"at": "Rome"})]
    taken = [{"tool": "look", "arguments": {"at": place}} for place in ("Oslo", "Rome")]
    step = make_step("".join(calls), {"win": 1.0}, action=taken[0], queue_seconds=0.4)
    step["calls"] = [{"action": each, "note": None, "text": "", "rewards": {}, "done": False} for each in taken]
    step["calls"][1]["note"] = "Rome is closed."
    messages = [
        {"role": "assistant", "content": "".join(calls), "reasoning": "First <b>think</b>"},
        {"role": "user", "content": "both", "results": ["rain in Oslo", "no Rome"]},
    ]
    rollout = make_rollouts(session, make_run(session), [[1, 1, 0]], steps=[step], messages=messages)[0]
    html = viewer.get(f"/rollouts/{rollout.id}").text
    assert re.search(r'<details class="reasoning"><summary>.*First &lt;b&gt;think', html, re.DOTALL)
    page = text_of(html)
    assert page.index("Oslo") < page.index("Rome") < page.index("Rome is closed.") < page.index("rain in Oslo")
    assert "waited 0.4 s" in page
    assert "environment 10 ms" in page


def test_tokens_reported_as_text_are_shaded_and_listed(session: Session, viewer: TestClient) -> None:
    tokens = {"texts": ["I ", "<take>", " 4"], "logprobs": [-0.01, -3.0, None], "turns": [0, 2]}
    rollout = make_rollouts(session, make_run(session), [[1, 1, 0]], tokens=tokens)[0]
    html = viewer.get(f"/rollouts/{rollout.id}").text
    assert '<span class="token" data-heat="5" title="5.0%">&lt;take&gt;</span>' in html
    assert "The 2 least sure, as a table" in text_of(html)
    assert '<hr><span class="token"' in html


def test_a_huge_conversation_is_loaded_in_parts(session: Session, viewer: TestClient) -> None:
    many = [{"role": "user", "content": f"message {number}."} for number in range(300)]
    long = [{"role": "assistant", "content": "x" * 50_000 + "the end"}]
    rollout = make_rollouts(session, make_run(session), [[1, 1, 0]], messages=[*long, *many])[0]
    html = viewer.get(f"/rollouts/{rollout.id}").text
    assert "30,007 more characters" in text_of(html)
    assert "message 38." in html[: html.index("Raw record")]
    assert "message 150." not in html[: html.index("Raw record")]
    part = re.findall(r'hx-get="(/rollouts/[^"]+start=120)"', html)[0]
    loaded = viewer.get(part).text
    assert re.findall(r'id="message-(\d+)"', loaded) == [str(number) for number in range(120, 160)]
    assert "message 150." in loaded
    assert viewer.get(part.replace("=120", "=999")).status_code == 404
    opened = viewer.get(f"/rollouts/{rollout.id}?at=150").text
    assert 'id="message-150"' in opened
    assert 'id="message-100"' not in opened
    whole = viewer.get(f"/rollouts/{rollout.id}?whole=true").text
    assert "message 150." in whole
    assert "the end" in whole[: whole.index("Raw record")]


def test_parts_of_a_long_conversation_know_their_turns(session: Session, viewer: TestClient) -> None:
    call = write_call("look", {"room": "hall"})
    messages = [{"role": "system", "content": "Look around."}, {"role": "user", "content": "Room 0"}]
    steps = []
    for turn in range(60):
        said = {"role": "assistant", "content": call, **({"reasoning": "The Ünique clue."} if turn == 50 else {})}
        messages += [said, {"role": "user", "content": f"Room {turn + 1}"}]
        action = {"tool": "look", "arguments": {"room": "hall"}}
        fields = {"tokens_in": 1000 + turn, "tokens_out": 7, "cost": 0.0005}
        steps.append(make_step(call, {"win": turn / 100}, action=action, observation={"n": turn}, **fields))
    run = make_run(session)
    rollout = make_rollouts(session, run, [[1, 1, 0]], messages=messages, steps=steps, turns=60)[0]
    flag = make_flag(session, run, rollout)
    flag.evidence = {"spans": [{"turn": 50, "start": 0, "end": 4}]}
    session.flush()

    first = viewer.get(f"/rollouts/{rollout.id}").text
    assert 'data-turns="19 39"' in first
    assert f'href="/rollouts/{rollout.id}?turn=50#turn-50">turn 51</a>' in first
    part = viewer.get(f"/rollouts/{rollout.id}/messages?start=80").text
    assert 'id="turn-39"' in part
    assert "win +0.39" in text_of(part)
    assert "1,039 in, 7 out, $0.0005" in part
    assert "data-tool" in part
    opened = viewer.get(f"/rollouts/{rollout.id}?turn=50").text
    assert 'id="turn-50"' in opened
    assert "data-cited" in opened
    found = viewer.get(f"/rollouts/{rollout.id}/find?find=ünique CLUE").text
    assert f'href="/rollouts/{rollout.id}?at=102&amp;find=%C3%BCnique%20CLUE#turn-50">policy turn 51</a>' in found
    assert "The <mark>Ünique clue</mark>." in found
    assert "No message contains" in viewer.get(f"/rollouts/{rollout.id}/find?find=100%25").text


def test_the_record_is_downloaded_whole(session: Session, viewer: TestClient) -> None:
    rollout = make_rollouts(session, make_run(session), [[1, 1, 0]])[0]
    answer = viewer.get(f"/rollouts/{rollout.id}/raw.json")
    assert "attachment" in answer.headers["content-disposition"]
    assert answer.json()["messages"][1]["content"] == "Board?"


def test_siblings_stand_side_by_side_with_their_differences(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    made = make_rollouts(session, run, [[1, 1, 0], [0, 1, 0]], group_size=2)
    made[1].messages = [{"role": "assistant", "content": "<move>7</move> instead"}]
    session.flush()
    page = viewer.get(f"/rollouts/{made[0].id}/beside/{made[1].id}").text
    assert "<mark>" in page
    assert "differ from turn 1" in text_of(page)
    stranger = make_rollouts(session, make_run(session), [[1, 1, 0]])[0]
    assert viewer.get(f"/rollouts/{made[0].id}/beside/{stranger.id}").status_code == 404


@pytest.mark.slow
def test_one_click_adds_it_to_the_review_and_one_takes_it_back(
    session: Session, reviewer: TestClient, viewer: TestClient
) -> None:
    rollout = make_rollouts(session, make_run(session), [[1, 1, 0]])[0]
    assert viewer.post(f"/rollouts/{rollout.id}/review").status_code == 403
    for _ in range(2):
        assert reviewer.post(f"/rollouts/{rollout.id}/review").status_code == 303
    assert session.scalars(select(Flag.detector)).all() == ["picked"]
    assert "Remove from review" in reviewer.get(f"/rollouts/{rollout.id}").text
    assert "picked it for review" in reviewer.get("/review?detector=picked").text
    assert reviewer.post(f"/rollouts/{rollout.id}/review/undo").status_code == 303
    assert session.scalars(select(Flag.detector)).all() == []
    reviewer.post(f"/rollouts/{rollout.id}/review")
    reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": "hack"})
    assert reviewer.post(f"/rollouts/{rollout.id}/review/undo").status_code == 409


def test_a_filter_that_cannot_be_read_does_not_hide_the_rollout(session: Session, viewer: TestClient) -> None:
    rollout = make_rollouts(session, make_run(session), [[1, 1, 0]])[0]
    assert viewer.get(f"/rollouts/{rollout.id}?where=wn+%3D+1&sort=secret").status_code == 200


def test_the_language_of_filters_is_described_in_the_product(viewer: TestClient) -> None:
    assert "A missing value equals nothing" in viewer.get("/help/filters").text
