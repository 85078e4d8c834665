"""Views of observations on pages: next to the text that the policy read, and after the last reply."""

import re
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.rollouts.tables import Rollout
from tests.factories import (
    make_environment,
    make_environment_version,
    make_flag,
    make_rollouts,
    make_run,
    make_step,
)

BOARD = {"kind": "grid", "title": "Board", "field": "board", "tones": {"X": "blue"}}


def played(session: Session, view: Any, observations: list[dict[str, Any]], **fields: Any) -> Rollout:
    """A rollout whose reset and steps observed these; an environment with an older version that has no view."""
    environment = make_environment(session)
    version = make_environment_version(session, environment, **({"view": view} if view else {}))
    opening, *later = observations
    messages, steps = [{"role": "user", "content": "It is your move."}], []
    for number, observation in enumerate(later):
        steps.append(make_step(f"<move>{number}</move>", {"win": 1.0}, observation=observation))
        messages += [
            {"role": "assistant", "content": f"<move>{number}</move>"},
            {"role": "user", "content": "And now?"},
        ]
    run = make_run(session, version)
    given = {"opening": opening, "steps": steps, "messages": messages[:-1], **fields}
    return make_rollouts(session, run, [[1, 1, 0], [1, 0, 0]], group_size=2, **given)[0]


def test_a_board_stands_for_the_text_and_follows_the_last_reply(session: Session, viewer: TestClient) -> None:
    rollout = played(session, BOARD, [{"board": "1 2"}, {"board": "X 2"}, {"board": "X X"}])
    html = viewer.get(f"/rollouts/{rollout.id}").text
    boards = re.findall(r'<table class="grid" aria-label="Board">(.*?)</table>', html)
    assert [re.findall(r"<td[^>]*>(\w)", board) for board in boards] == [["1", "2"], ["X", "2"], ["X", "X"]]
    assert html.count("Text that the policy read") == 2
    assert "It is your move." in html
    assert 'data-tone="blue"' in html


def test_a_view_that_fails_says_why_and_the_text_remains(session: Session, viewer: TestClient) -> None:
    rollout = played(session, {"kind": "markdown", "template": "{{ missing }}"}, [{"a": 1}, {"a": 2}])
    html = viewer.get(f"/rollouts/{rollout.id}").text
    assert "This view cannot be shown: its template, line 1: &#39;missing&#39; is undefined" in html
    assert "It is your move." in html


def test_an_older_version_is_shown_with_the_newest_view(session: Session, viewer: TestClient) -> None:
    rollout = played(session, None, [{"board": "1 2"}, {"board": "X 2"}])
    assert "data-kind=" not in viewer.get(f"/rollouts/{rollout.id}").text.partition('id="transcript"')[2]
    environment = rollout.group.task.version.environment
    make_environment_version(
        session, environment, number=2, view=[BOARD, {"kind": "markdown", "template": "{{ new }}"}]
    )
    html = viewer.get(f"/rollouts/{rollout.id}").text
    assert html.count('class="grid"') == 2
    assert "cannot be shown" not in html


def test_the_review_and_both_sides_of_a_group_show_it(
    session: Session, viewer: TestClient, reviewer: TestClient
) -> None:
    rollout = played(session, BOARD, [{"board": "1 2"}, {"board": "X 2"}])
    other = session.query(Rollout).filter(Rollout.group_id == rollout.group_id, Rollout.member == 1).one()
    assert viewer.get(f"/rollouts/{rollout.id}/beside/{other.id}").text.count('class="grid"') == 4
    flag = make_flag(session, rollout.run, rollout)
    assert reviewer.get(f"/review/{flag.id}?evidence=1").text.count('class="grid"') == 2
