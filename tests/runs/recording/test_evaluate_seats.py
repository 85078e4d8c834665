"""Two policies against each other, from the start to a replay: a real env host, a real Postgres."""

import uuid
from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import content_hash
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import RunStatus, Split
from backend.environments.library import load_package
from backend.rollouts.regrading.schemas import StartReplay
from backend.rollouts.regrading.service import start_regrading
from backend.rollouts.tables import Rollout
from backend.runs.evaluations import start_evaluation
from backend.runs.queries import get_run
from backend.runs.rerun import RerunRequest, run_again
from backend.runs.schemas import EvaluationRequest
from backend.runs.tables import Run
from tests.envhost_fixture import HostProcess
from tests.factories import make_member, make_package_version, make_policy
from tests.runs.recording.conftest import run_of
from workers.tasks.evaluations import run as play
from workers.tasks.execute import run_async
from workers.tasks.hand_play import PlayedScene, Scene
from workers.tasks.hand_play import replay as replay_scene
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as replay


@pytest.mark.slow
def test_two_policies_play_each_task_from_both_seats_and_the_match_replays(found_host: HostProcess) -> None:
    with transaction() as session:
        version = make_package_version(session, load_package("tictactoe_duel"))
        gold, _ = (make_policy(session, name=name, configuration={"script": name}) for name in ("gold", "wrong"))
        request = EvaluationRequest(version_id=version.id, policy_id=gold.id, tasks=3, opponent="wrong")
        run_id = start_evaluation(session, make_member(session), request).id
    play(JobContext(uuid.uuid4(), run_id, {}, 1))
    row = run_of(run_id)
    assert (row.status, row.reason) == (RunStatus.COMPLETED, None)
    match: Any = row.summary["match"]
    assert (match["opponent"], match["score"]["mean"], match["score"]["count"]) == ("wrong", 1.0, 3)
    assert match["seats"] == [{"seat": seat, "wins": 3, "draws": 0, "losses": 0} for seat in ("o", "x")]

    with transaction() as session:
        actor, source = make_member(session), get_run(session, run_id)
        again = EvaluationPlan.model_validate(run_again(session, actor, source, RerunRequest()).configuration)
        assert again.opponent == EvaluationPlan.model_validate(source.configuration).opponent
        [replayed] = start_regrading(session, actor, StartReplay(run_ids=[run_id], version_id=source.version_id)).runs
    replay(JobContext(uuid.uuid4(), replayed.id, {}, 1))
    with transaction() as session:
        assert session.get_one(Run, replayed.id).status is RunStatus.COMPLETED
        by_run = [
            session.scalars(select(Rollout.reward).where(Rollout.run_id == each)) for each in (run_id, replayed.id)
        ]
        assert sorted(by_run[0]) == sorted(by_run[1])


def test_a_person_plays_one_seat_against_the_script(found_host: HostProcess) -> None:
    files = load_package("tictactoe_duel")
    manifest = read_manifest(files["openenv.yaml"])
    task = task_of(manifest, Split.HELDOUT, 0)

    def played(*replies: str) -> PlayedScene:
        return run_async(replay_scene(Scene(task, content_hash(files), files, manifest, list(replies))))

    opened = played()
    assert opened.error == ""
    assert opened.rollout.messages[-1]["content"].startswith("You are ")
    free = opened.rollout.opening["legal_moves"]
    moved = played(f"<move>{free[0]}</move>")
    assert moved.rollout.steps[0].text.startswith(("X plays ", "O plays "))  # the script answered
    assert played(f"<move>{free[0]}</move>").rollout.steps[0].observation == moved.rollout.steps[0].observation
