"""The queue of what waits for review."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.db.models import Flag
from backend.domain.vocabulary import Severity, Verdict
from backend.judging.forms import FlagFilter, Order, Shown
from backend.judging.queries import next_suspect, queue
from tests import factories


def _suspicious_run(session: Session, name: str = "maze") -> tuple[factories.Run, list[factories.Rollout]]:
    version = factories.make_environment_version(session, factories.make_environment(session, name))
    run = factories.make_run(session, version)
    return run, factories.make_rollouts(session, run, factories.random_rows(4))


def test_flags_on_one_rollout_are_one_suspect(viewer: TestClient, session: Session) -> None:
    run, rollouts = _suspicious_run(session)
    factories.make_flag(session, run, rollouts[0], detector="repeated_text")
    factories.make_flag(session, run, rollouts[0], detector="early_exit")
    factories.make_flag(session, run, None, detector="reward_jump")
    suspects, following = queue(session, FlagFilter(), limit=10)
    assert sorted(len(suspect.flags) for suspect in suspects) == [1, 2]
    assert following is None
    assert "and 1 more" in viewer.get("/review").text


def test_it_shows_what_was_not_reviewed_unless_asked(
    viewer: TestClient, reviewer: TestClient, session: Session
) -> None:
    run, rollouts = _suspicious_run(session)
    flag = factories.make_flag(session, run, rollouts[0], sentence="Strange indeed.")
    assert "Strange indeed." in viewer.get("/review").text
    reviewer.post(f"/api/v1/flags/{flag.id}/verdicts", json={"verdict": "hack"})
    assert "Nothing waits for review" in viewer.get("/review").text
    assert "Strange indeed." in viewer.get("/review?shown=reviewed").text
    assert "Strange indeed." in viewer.get("/review?shown=all").text


def test_it_narrows_by_detector_environment_and_run(session: Session) -> None:
    first, rollouts = _suspicious_run(session, "maze")
    second, _ = _suspicious_run(session, "chess")
    factories.make_flag(session, first, rollouts[0], detector="repeated_text")
    factories.make_flag(session, second, None, detector="reward_jump")
    for chosen in (FlagFilter(detector="reward_jump"), FlagFilter(environment="chess"), FlagFilter(run=second.id)):
        suspects, _ = queue(session, chosen, limit=10)
        assert [suspect.run.id for suspect in suspects] == [second.id]


def test_the_worst_come_first_when_asked(session: Session) -> None:
    run, rollouts = _suspicious_run(session)
    for rollout, severity in zip(rollouts, (Severity.NOTE, Severity.ALERT, Severity.WARNING), strict=False):
        factories.make_flag(session, run, rollout, severity=severity)
    suspects, _ = queue(session, FlagFilter(order=Order.WORST), limit=10)
    assert [suspect.severity for suspect in suspects] == [Severity.ALERT, Severity.WARNING, Severity.NOTE]


def test_pages_hold_every_suspect_once(session: Session) -> None:
    run, rollouts = _suspicious_run(session)
    for rollout in rollouts:
        factories.make_flag(session, run, rollout)
    for order in Order:
        seen, after = [], None
        for _ in range(10):
            suspects, after = queue(session, FlagFilter(order=order), after=after, limit=3)
            seen += [suspect.first.id for suspect in suspects]
            if after is None:
                break
        assert len(seen) == len(set(seen)) == len(rollouts)


def test_the_newest_verdict_counts(session: Session, reviewer: TestClient) -> None:
    run, rollouts = _suspicious_run(session)
    flag = factories.make_flag(session, run, rollouts[0])
    for verdict in ("hack", "honest"):
        reviewer.post(f"/api/v1/flags/{flag.id}/verdicts", json={"verdict": verdict})
    suspects, _ = queue(session, FlagFilter(shown=Shown.ALL), limit=1)
    assert suspects[0].verdicts[flag.id] is Verdict.HONEST
    assert reviewer.get("/api/v1/flags?shown=all").json()["items"][0]["verdict"] == "honest"


@pytest.mark.parametrize("order", list(Order))
def test_one_verdict_after_the_other_walks_down_the_queue(reviewer: TestClient, session: Session, order: Order) -> None:
    run, rollouts = _suspicious_run(session)
    for rollout, severity in zip(
        rollouts, (Severity.NOTE, Severity.ALERT, Severity.NOTE, Severity.WARNING), strict=True
    ):
        factories.make_flag(session, run, rollout, severity=severity)
    for _ in range(2):
        factories.make_flag(session, run, None)
    chosen = FlagFilter(order=order)
    suspects, _ = queue(session, chosen, limit=10)
    expected = [suspect.flags[0].rollout_id for suspect in suspects for _ in suspect.flags]
    walked = []
    flag: Flag | None = suspects[0].first
    while flag:
        walked.append(flag.rollout_id)
        reviewer.post(f"/api/v1/flags/{flag.id}/verdicts", json={"verdict": "honest"})
        flag = next_suspect(session, chosen, flag)
    assert walked == expected
    assert len(walked) == 6
