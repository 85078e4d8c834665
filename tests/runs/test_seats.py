"""Evaluations of two policies: what is refused, and how the page shows the games."""

import re
import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.rollouts.record import RolloutRecord
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.training.self_play import CURVES, League, LeagueMember
from backend.domain.vocabulary import PolicyKind, Queue, RunKind
from backend.environments.library import load_package
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.export import facts_of, records
from backend.rollouts.formats import native
from backend.runs.charts import charts_of
from backend.runs.metric_points import latest_steps
from backend.runs.tables import MetricPoint, Run
from backend.training.league import league_of
from tests.factories import (
    make_checkpoint,
    make_environment_version,
    make_package_version,
    make_policy,
    make_rollouts,
    make_run,
)

PLAY = {
    "seat": "o", "policy": "wrong", "columns": {"win": 0.0}, "reward": 0.2, "stop_reason": "done", "tokens_in": 0,
    "tokens_out": 4, "cost": None, "tokens": None, "messages": [{"role": "user", "content": "You are O."}],
    "steps": [{"reply": "<move>1</move>", "rewards": {"win": 0.0}}],
}  # fmt: skip
SEATS = {"seat": "x", "others": [PLAY], "order": ["x", "o", "x"], "score": 1.0}


@pytest.fixture
def duel(session: Session) -> EnvironmentVersion:
    return make_package_version(session, load_package("tictactoe_duel"))


@pytest.fixture
def gold(session: Session) -> Policy:
    return make_policy(session, name="gold", configuration={"script": "gold"})


def test_an_unfair_or_impossible_match_is_refused(
    session: Session, author: TestClient, duel: EnvironmentVersion, gold: Policy
) -> None:
    request = {"version_id": str(duel.id), "policy_id": str(gold.id), "tasks": 3, "opponent": "gold"}

    def problems(**changes: Any) -> dict[str, str]:
        answer = author.post("/api/v1/evaluations", json=request | changes)
        assert answer.status_code == 422
        return dict(answer.json()["fields"])

    alone = make_environment_version(session)
    make_policy(session, name="lost", configuration={"script": "unknown"})
    make_policy(session, name="away", kind=PolicyKind.EXTERNAL)
    assert "declares no seats" in problems(version_id=str(alone.id))["opponent"]
    assert "multiple of 2" in problems(group_size=3)["group_size"]
    assert "opponent" in problems(opponent="nobody")
    assert "offers no script" in problems(opponent="lost")["opponent"]
    assert "played elsewhere" in problems(opponent="away")["opponent"]
    assert "no such checkpoint" in problems(opponent=f"{gold.id}:{uuid.uuid4()}")["opponent"]


def test_each_task_is_played_from_every_seat_and_a_local_opponent_needs_the_gpu_queue(
    session: Session, author: TestClient, duel: EnvironmentVersion, gold: Policy
) -> None:
    local = make_policy(session, kind=PolicyKind.LOCAL)
    checkpoint = make_checkpoint(session, local, step=40)
    assert "Opponent" in author.get("/evaluations/new").text
    form = {"version_id": str(duel.id), "policy_id": str(gold.id), "tasks": "3", "split": "heldout", "group_size": "1"}
    sent = author.post("/evaluations", data=form | {"opponent": f"{local.id}:{checkpoint.id}"})
    run = session.get_one(Run, uuid.UUID(sent.headers["location"].rpartition("/")[2]))
    plan = EvaluationPlan.model_validate(run.configuration)
    assert plan.opponent is not None
    assert (plan.group_size, plan.opponent.checkpoint_id) == (2, str(checkpoint.id))
    assert f"gold against {plan.opponent.name} on" in run.name
    assert session.scalars(select(Job.queue).where(Job.run_id == run.id)).one() is Queue.GPU


def test_the_pages_show_games_by_seat_and_every_seats_turns(
    session: Session, author: TestClient, duel: EnvironmentVersion, gold: Policy
) -> None:
    opponent = {"policy_id": str(gold.id), "name": "wrong"}
    run = make_run(session, duel, gold, configuration={"tasks": 4, "opponent": opponent})
    won = make_rollouts(session, run, [[1, 1, 0]] * 3, seat="x", seats=SEATS, metrics={"match_score": 1.0})
    page = author.get(f"/runs/{run.id}").text
    assert "Games against wrong" in page
    assert "seat+%3D+x+and+match_score+%3D+1" in page
    found = author.get(
        "/api/v1/rollouts", params={"run_id": str(run.id), "where": "seat = x and match_score = 1"}
    ).json()
    assert len(found["items"]) == 3
    assert author.get("/api/v1/rollouts", params={"run_id": str(run.id), "where": "seat = o"}).json()["items"] == []
    detail = author.get(f"/rollouts/{won[0].id}").text
    assert "Seat o: wrong" in detail
    assert "You are O." in detail
    assert "Your seat" in detail
    assert "Keep this episode" not in detail
    assert author.get(f"/api/v1/rollouts/{won[0].id}").json()["seats"]["others"][0]["policy"] == "wrong"
    refused = author.post(
        f"/api/v1/environments/{duel.environment.name}/fixtures", json={"rollout_id": str(won[0].id), "name": "kept"}
    )
    assert "the others would play differently" in refused.json()["detail"]
    [record, *_] = records(session, run, facts_of(session, run))
    read = native.read_table_row(native.table_row(record))
    assert read.seats == RolloutRecord.model_validate(record).seats
    assert read.seats is not None


@pytest.mark.parametrize(
    "change",
    [
        {"seat": "x" * 41},
        {"others": [PLAY] * 8},
        {"others": [PLAY | {"messages": [{"role": "user"}]}]},
        {"others": [PLAY | {"reward": float("nan")}]},
        {"order": ["x"] * 80_001},
        {"others": [PLAY | {"stop_reason": "bored"}]},
    ],
)
def test_hostile_seats_in_an_imported_file_are_refused(change: dict[str, Any]) -> None:
    record = {"messages": [], "reward": 1.0, "seats": SEATS}
    assert RolloutRecord.model_validate(record).seats is not None
    with pytest.raises(ValueError, match="seats"):
        RolloutRecord.model_validate(record | {"seats": SEATS | change})


def test_a_self_play_run_shows_its_league(session: Session, viewer: TestClient) -> None:
    run = make_run(session, kind=RunKind.TRAINING)
    league = League([LeagueMember("sft 40", games=9, points=6.0), LeagueMember("grpo 20", 1100.0)], 1050.0)
    earlier = {f"{CURVES}rating": 900.0}
    for step, attempt, figures in ((19, 1, earlier), (20, 1, earlier), (20, 2, league.figures())):
        for name, value in figures.items():
            session.add(MetricPoint(run_id=run.id, name=name, step=step, attempt=attempt, value=value))
    session.flush()
    assert league_of(session, run.id) == league
    page = " ".join(re.sub(r"<[^>]+>", " ", viewer.get(f"/runs/{run.id}").text).split())
    assert "The policy has 1,050 Elo" in page
    assert page.index("grpo 20 1,100 0 –") < page.index("sft 40 fixed rating 1,000 9 66.7%")
    main, more = charts_of(run, latest_steps(session, run.id))
    [chart] = [chart for chart in main if chart.key == "league"]
    assert [series.label for series in chart.series] == ["policy", "grpo 20", "sft 40"]
    assert not [chart for chart in more if chart.key.startswith(CURVES)]
