"""The screen of one flag: evidence marked, model text harmless, whatever a detector wrote down."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from tests import factories

HOSTILE = "</div><script>alert(1)</script>{{ 7 * 7 }}<hx-partial hx-target='#main'>"


def test_the_span_that_the_detector_names_is_marked(viewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollout = factories.make_rollouts(session, run, factories.random_rows(1))[0]
    evidence = {"spans": [{"turn": 0, "start": 6, "end": 7}], "series": {"reward": [0.1, None, 0.4]}}
    flag = factories.make_flag(session, run, rollout, evidence=evidence)
    text = viewer.get(f"/review/{flag.id}").text
    assert "&lt;move&gt;<mark>4</mark>&lt;/move&gt;" in text
    assert "<polyline" in text


def test_model_text_is_escaped_everywhere(viewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    messages = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]
    step = factories.make_step(HOSTILE, {HOSTILE: 1.0}, note=HOSTILE, action={"cell": HOSTILE})
    rollout = factories.make_rollouts(
        session, run, factories.random_rows(1), messages=messages, steps=[step], excerpt=HOSTILE
    )[0]
    flag = factories.make_flag(session, run, rollout, sentence=HOSTILE, evidence={"excerpt": HOSTILE, HOSTILE: HOSTILE})
    for path in (f"/review/{flag.id}", "/review", "/"):
        text = viewer.get(path).text
        assert "<script>alert" not in text
        assert "<hx-partial hx-target='#main'" not in text
        assert "&lt;script&gt;" in text


def test_a_flag_about_a_run_shows_example_rollouts(viewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollouts = factories.make_rollouts(session, run, factories.random_rows(5))
    evidence = {"rollouts": [str(rollout.id) for rollout in rollouts] + ["not an id"], "window": [12, 31]}
    flag = factories.make_flag(session, run, None, evidence=evidence)
    text = viewer.get(f"/review/{flag.id}").text
    assert text.count('class="example"') == 3
    assert "12 – 31" in text


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"spans": "nonsense", "rollouts": 7, "series": [1, 2], "thresholds": None, "title": 3},
        {"spans": [{"turn": 0, "start": -5, "end": 10**9}, {"turn": 99, "start": 0, "end": 1}]},
        {"series": {"a": [], "b": ["x"], "c": [1.0]}, "nested": {"deep": [1, {"x": None}]}},
    ],
)
def test_odd_evidence_still_gives_a_page(viewer: TestClient, session: Session, evidence: dict[str, Any]) -> None:
    run = factories.make_run(session)
    rollout = factories.make_rollouts(session, run, factories.random_rows(1))[0]
    flag = factories.make_flag(session, run, rollout, evidence=evidence)
    assert viewer.get(f"/review/{flag.id}").status_code == 200


def test_a_failed_rollout_has_no_reward_but_a_page(viewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollout = factories.make_rollouts(session, run, [None])[0]
    flag = factories.make_flag(session, run, rollout)
    assert viewer.get(f"/review/{flag.id}").status_code == 200
