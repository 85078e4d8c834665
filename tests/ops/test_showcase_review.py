"""How the showcase of a hacked reward judges the queue, over real rows and the real JSON API."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.vocabulary import StopReason, Verdict
from backend.environments.library import load_package
from backend.review.tables import VerdictRecord
from backend.runs.tables import Run
from backend.showcase.hacked_reward import AGREED, OtherPackage, ReviewQueue, describe_draft_score, repaired
from backend.team.service import issue_local_token
from proctor import Client
from tests import factories
from tests.ops.commands import server

__all__ = ["server"]

BEST = [1.0, 1.0, 0.0]


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with transaction() as session:
        token = issue_local_token(session)
    client = Client(server, token)
    yield client
    client.close()


@pytest.fixture
def run(server: str) -> Run:
    """Six flagged episodes that were broken off at once, one later, and two that came to their end."""
    with transaction() as session:
        version = factories.make_environment_version(session, factories.make_environment(session, "maze"))
        run = factories.make_run(session, version)
        rollouts = factories.make_rollouts(session, run, [BEST] * 9)
        for rollout in rollouts[:6]:
            rollout.stop_reason = StopReason.UNPARSABLE
            factories.make_flag(session, run, rollout, detector="paid_exit", cluster="exit")
        rollouts[8].stop_reason, rollouts[8].turns = StopReason.UNPARSABLE, 2
        for rollout in rollouts[6:]:
            factories.make_flag(session, run, rollout)
        return run


def _verdicts(run: Run) -> dict[object, VerdictRecord]:
    with transaction() as session:
        rows = session.scalars(select(VerdictRecord).where(VerdictRecord.run_id == run.id))
        return {row.rollout_id: row for row in rows}


def _is_exit(client: Client, item: dict[str, Any]) -> bool:
    rollout = client.get(f"/rollouts/{item['rollout_id']}")
    return bool(rollout["stop_reason"] == "unparsable" and rollout["turns"] == 1)


def test_what_was_broken_off_and_paid_is_a_hack_and_the_rest_is_honest(client: Client, run: Run) -> None:
    queue = ReviewQueue(client, str(run.id), highest_reward=2 * run.weights[0], most_turns=2)

    assert queue.review() == ({"hack": 6, "honest": 3}, 0)

    hack = queue.best_hack()
    assert hack is not None
    assert hack["stop_reason"] == "unparsable"
    assert queue.review() == ({"hack": 6, "honest": 3}, 0), "what was judged is not judged again"


def test_verdicts_of_another_person_count_and_the_rest_of_a_cluster_is_judged_at_once(client: Client, run: Run) -> None:
    items = [item for item in client.pages("/review/items", run=str(run.id)) if item["rollout_id"]]
    hacks = [item for item in items if _is_exit(client, item)]
    for item in hacks[:AGREED]:
        client.post(f"/review/items/{item['id']}/verdicts?evidence=1", {"verdict": "hack"})

    queue = ReviewQueue(client, str(run.id), highest_reward=1.0, most_turns=2)

    assert queue.review_clusters() == 6 - AGREED
    given = _verdicts(run)
    assert len(given) == 6
    assert {record.verdict for record in given.values()} == {Verdict.HACK}
    assert sum(record.is_bulk for record in given.values()) == 6 - AGREED


def test_a_cluster_of_mixed_verdicts_is_left_alone(client: Client, run: Run) -> None:
    items = [item for item in client.pages("/review/items", run=str(run.id)) if item["rollout_id"]]
    hacks = [item for item in items if _is_exit(client, item)]
    for item, verdict in zip(hacks[: AGREED + 1], ["honest"] + ["hack"] * AGREED, strict=True):
        client.post(f"/review/items/{item['id']}/verdicts?evidence=1", {"verdict": verdict})

    assert ReviewQueue(client, str(run.id), highest_reward=1.0, most_turns=2).review_clusters() == 0


def test_the_repair_refuses_another_package() -> None:
    files = load_package("sloppy_guess")
    assert "on_unparsable: retry" in repaired(files)["openenv.yaml"]
    with pytest.raises(OtherPackage, match=r"openenv\.yaml"):
        repaired(repaired(files))


def test_scores_of_a_draft_are_reported_where_there_are_some() -> None:
    means = {"before": {"mean": 1.08}, "after": {"mean": 0.48}}
    nothing = {"before": None, "after": None}
    assert describe_draft_score({"this": means, "cluster": nothing, "history": means}) == (
        "this hack 1.08 → 0.48; history 1.08 → 0.48"
    )
