"""Games between policies: who beat whom, ratings with intervals, and round robins that fill the gaps."""

import math
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.results.ratings import MIN_GAMES, rate
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus, Split
from backend.environments.library import load_package
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run
from tests.factories import (
    make_environment,
    make_environment_version,
    make_member,
    make_package_version,
    make_policy,
    make_rollouts,
    make_run,
)

NAME = "tictactoe_duel"
MATCHES = f"/api/v1/environments/{NAME}/matches"


def table_of(*results: tuple[int, int, int, int, int], count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """(i, j, won, drawn, lost) as the arguments of `rate`."""
    won, drawn = ([[0] * count for _ in range(count)] for _ in range(2))
    for i, j, wins, draws, losses in results:
        won[i][j], won[j][i] = wins, losses
        drawn[i][j] = drawn[j][i] = draws
    return tuple(map(tuple, won)), tuple(map(tuple, drawn))


def test_ratings_are_those_of_the_closed_form_and_cover_the_truth() -> None:
    one, other = rate(*table_of((0, 1, 60, 0, 40), count=2))
    assert one.elo is not None
    assert other.elo is not None
    assert one.elo.mean - other.elo.mean == pytest.approx(400 * math.log10(60.5 / 40.5), abs=0.01)
    assert one.elo.mean + other.elo.mean == pytest.approx(2000)
    # the standard error of the difference is 400 / ln 10 · √(1 / (n p (1 - p))), half of it on each side
    reach = 1.96 * 400 / math.log(10) / math.sqrt(100 * 0.6 * 0.4) / 2
    assert (one.elo.high - one.elo.low) / 2 == pytest.approx(reach, rel=0.15)
    drawn = rate(*table_of((0, 1, 0, 40, 0), count=2))
    assert [each.elo and each.elo.mean for each in drawn] == pytest.approx([1000, 1000])


def test_a_policy_that_never_lost_has_a_finite_rating_with_a_wide_interval() -> None:
    best, middle, last = rate(*table_of((0, 1, 12, 0, 0), (0, 2, 12, 0, 0), (1, 2, 6, 0, 6), count=3))
    assert best.elo is not None
    assert middle.elo is not None
    assert last.elo is not None
    assert middle.elo.mean == pytest.approx(last.elo.mean, abs=0.1)
    assert best.elo.low > middle.elo.high
    assert best.elo.high - best.elo.mean > best.elo.mean - best.elo.low > 50


def test_too_few_games_and_separate_groups_are_named() -> None:
    ratings = rate(*table_of((0, 1, 20, 0, 10), (0, 2, 1, 1, 1), (3, 4, 30, 0, 0), count=5))
    assert [each.elo is None for each in ratings] == [False, False, True, True, True]
    assert ratings[2].reason == f"too few games: 3 of {MIN_GAMES}"
    assert ratings[3].reason == "no games against the rated policies"
    assert rate((), ()) == []


@pytest.fixture
def duel(session: Session) -> EnvironmentVersion:
    return make_package_version(session, load_package(NAME), make_environment(session, NAME))


def played(
    session: Session, version: EnvironmentVersion, policy: Policy, rival: Policy | None, *counts: int, **fields: Any
) -> Run:
    """An evaluation that ended with these numbers of wins, draws and losses on the seat x."""
    opponent = {"policy_id": str(rival.id), "name": rival.name} if rival else None
    wins, draws, losses = counts
    match = {"opponent": "", "seats": [{"seat": "x", "wins": wins, "draws": draws, "losses": losses}]}
    plan = {"tasks": 20, "group_size": 2, "opponent": opponent, "split": "heldout", **fields.pop("plan", {})}
    return make_run(session, version, policy, configuration=plan, summary={"match": match}, **fields)


def test_the_table_joins_evaluations_scripts_and_people(
    session: Session, author: TestClient, duel: EnvironmentVersion
) -> None:
    gold, wrong = (make_policy(session, name=name, configuration={"script": name}) for name in ("gold", "wrong"))
    random = make_policy(session, name="random", configuration={"script": "random"})
    played(session, duel, gold, wrong, 30, 8, 2)
    played(session, duel, gold, wrong, 30, 8, 2)  # the same games again
    played(session, duel, wrong, gold, 1, 0, 3, seed=7)
    played(session, duel, gold, None, 18, 0, 2)  # against the environment's own script, which is random
    played(session, duel, random, wrong, 0, 0, 0, status=RunStatus.RUNNING, seed=3)
    person = make_policy(session, name="human", kind=PolicyKind.HUMAN)
    task = {"split": "heldout", "index": 0, "opponent": {"policy_id": str(wrong.id), "name": "wrong"}}
    by_hand = {"kind": RunKind.PLAY, "configuration": task, "seed": task_of(duel.typed_manifest, Split.HELDOUT, 0).seed}
    someone = make_member(session).person_id
    for _ in range(2):  # only the first episode counts: the second knows the task
        run = make_run(session, duel, person, created_by=someone, **by_hand)
        make_rollouts(session, run, [[1, 1, 0]], metrics={"match_score": 1.0})

    table = author.get(MATCHES).json()
    by_name = {player["name"]: player for player in table["players"]}
    assert table["players"][0]["name"] == "gold"
    counts = [by_name["gold"][name] for name in ("wins", "draws", "losses", "games")]
    assert counts == [30 + 3 + 18, 8, 2 + 1 + 2, 64]
    assert set(by_name) == {"gold", "wrong", "random", "human"}
    assert (by_name["human"]["wins"], by_name["human"]["games"]) == (1, 1)
    assert by_name["human"]["rating"]["reason"].startswith("too few games: 1 of")
    assert by_name["random"]["games"] == 20
    names = [player["name"] for player in table["players"]]
    cell = table["cells"][names.index("random")][names.index("wrong")]
    assert (cell["wins"], cell["waiting"]) == (0, 40)
    assert by_name["gold"]["rating"]["elo"]["low"] > by_name["wrong"]["rating"]["elo"]["high"]
    page = author.get(f"/leaderboards/{NAME}").text
    assert "Win matrix" in page
    assert "40 to play" in page
    assert author.get(MATCHES, params={"split": "train"}).json()["players"] == []
    assert author.get(MATCHES, params={"version": 9}).status_code == 404


def test_a_round_robin_starts_each_pair_once(session: Session, author: TestClient, duel: EnvironmentVersion) -> None:
    for name in ("gold", "wrong", "random"):
        make_policy(session, name=name, configuration={"script": name})
    form = {"policies": ["gold", "wrong", "random", "gold"], "tasks": "5"}
    sent = author.post(f"/environments/{NAME}/matches", data=form)
    assert sent.headers["location"].startswith(f"/leaderboards/{NAME}?version=1")
    runs = session.scalars(select(Run).where(Run.kind == RunKind.EVALUATION)).all()
    assert sorted(run.name.partition(" on ")[0] for run in runs) == [
        "gold against random",
        "gold against wrong",
        "wrong against random",
    ]
    assert len({tuple(run.tags) for run in runs}) == 1
    assert {run.configuration["group_size"] for run in runs} == {2}
    assert author.post(MATCHES, json={"policies": ["wrong", "gold"], "tasks": 5}).status_code == 409
    more = author.post(MATCHES, json={"policies": ["wrong", "gold"], "tasks": 5, "seed": 1}).json()
    assert len(more["run_ids"]) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"policies": ["gold"]}, "policies"),
        ({"policies": ["gold", "gold"]}, "policies"),
        ({"policies": ["gold", "nobody"]}, "policies"),
        ({"policies": ["gold", "odd"]}, "policies"),
        ({"policies": ["gold"] * 13}, "policies"),
        ({"tasks": 4000}, "tasks"),
    ],
)
def test_an_impossible_round_robin_is_refused_and_starts_nothing(
    session: Session, author: TestClient, duel: EnvironmentVersion, change: dict[str, Any], field: str
) -> None:
    for name, script in (("gold", "gold"), ("wrong", "wrong"), ("odd", "unknown")):
        make_policy(session, name=name, configuration={"script": script})
    refused = author.post(MATCHES, json={"policies": ["gold", "wrong"], "tasks": 5} | change)
    assert refused.status_code == 422
    assert field in refused.json()["fields"]
    assert session.scalar(select(func.count(Run.id))) == 0


def test_an_environment_without_seats_has_no_matches(session: Session, author: TestClient) -> None:
    alone = make_environment_version(session)
    address = f"/api/v1/environments/{alone.environment.name}/matches"
    assert author.get(address).status_code == 409
    assert author.post(address, json={"policies": ["a", "b"]}).status_code == 409
    assert "Win matrix" not in author.get(f"/leaderboards/{alone.environment.name}").text
