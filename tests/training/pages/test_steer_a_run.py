"""Alarms, settings and branches of a training run: as pages and as JSON, and who may."""

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, PolicyKind, Queue, Role, RunKind, RunStatus
from backend.runs.tables import Run
from backend.team.tables import AuditEvent
from backend.training.tables import Alarm, SettingChange
from tests.factories import make_checkpoint, make_policy, make_run
from tests.web_fixtures import ClientFor


def training(
    session: Session, status: RunStatus = RunStatus.RUNNING, *, has_checkpoints: bool = True, **choices: Any
) -> Run:
    """A run with checkpoints of the warm-up and of GRPO steps 20 and 40; without any it still warms up."""
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    configuration = TrainingConfiguration.model_validate(choices).resolved()
    run = make_run(session, policy=policy, kind=RunKind.TRAINING, status=status, configuration=configuration)
    if not status.is_over:
        run.ended_at = None
    if has_checkpoints:
        make_checkpoint(session, policy, run, stage="sft", step=800, heldout_reward=0.4)
        make_checkpoint(session, policy, run, stage="grpo", step=20, heldout_reward=0.7)
        make_checkpoint(session, policy, run, stage="grpo", step=40, heldout_reward=0.6)
    enqueue(session, "training.run", queue=Queue.GPU, run_id=run.id)
    session.flush()
    return run


def alarm(session: Session, run: Run, onset: int = 30, name: str = "format_fall", curve: str = "format") -> Alarm:
    row = Alarm(
        run_id=run.id,
        name=name,
        step=45,
        sentence="Only 80 % of the turns could be parsed.",
        action=AlarmAction.NOTE,
        evidence={"onset": onset, "condition": name, "value": 0.8, "limit": 0.93, "curve": curve},
    )
    session.add(row)
    session.flush()
    return row


def post(client: TestClient, path: str, **fields: object) -> Any:
    return client.post(path, data=fields)


def ask(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    return client.post(f"/api/v1{path}", json=body)


def changes_of(session: Session, run: Run) -> list[tuple[str, Any, Any]]:
    rows = session.scalars(select(SettingChange).where(SettingChange.run_id == run.id).order_by(SettingChange.id))
    return [(row.name, row.before, row.after) for row in rows]


def test_what_an_open_alarm_states_is_not_said_twice(session: Session, client_for: ClientFor) -> None:
    run = training(session, RunStatus.PAUSED)
    row = alarm(session, run)
    run.reason = f"Alarm format fall: {row.sentence}"
    client = client_for(Role.TRAINER)
    assert client.get(f"/runs/{run.id}/log").text.count(row.sentence) == 1
    row.answer = AlarmAnswer.DISMISS
    session.flush()
    assert client.get(f"/runs/{run.id}/log").text.count(row.sentence) == 1, "then the reason says it"


def test_the_tab_shows_what_was_seen_what_it_means_and_what_helps(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    alarm(session, run)
    page = client_for(Role.TRAINER).get(f"/runs/{run.id}/alarms").text
    for shown in (
        "Format falls",
        "Only 80 % of the turns",
        "The learning rate is too high",
        "Roll back to the best checkpoint",
    ):
        assert shown in page
    assert 'name="alarms.format_drop" value="0.05"' in page
    assert "Lower the learning rate" in client_for(Role.TRAINER).get(f"/runs/{run.id}").text, (
        "open alarms are on the overview"
    )
    seen = client_for(Role.VIEWER).get(f"/runs/{run.id}/alarms").text
    assert "Only 80 % of the turns" in seen
    assert "Lower the learning rate" not in seen


def test_without_alarms_the_tab_shows_what_is_looked_for(session: Session, client_for: ClientFor) -> None:
    page = client_for(Role.VIEWER).get(f"/runs/{training(session).id}/alarms").text
    assert "No alarms" in page
    assert "Entropy collapse" in page


def test_an_alarm_is_answered_once(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    seen = alarm(session, run)
    client = client_for(Role.TRAINER)
    assert post(client, f"/runs/{run.id}/alarms/{seen.id}", answer="lower_rate").status_code == 303
    assert changes_of(session, run) == [("grpo.learning_rate", 5e-4, 2.5e-4)]
    assert (seen.answer, seen.answered_by is not None) == ("lower_rate", True)
    assert post(client, f"/runs/{run.id}/alarms/{seen.id}", answer="dismiss").status_code == 409
    assert "Answered by" in client.get(f"/runs/{run.id}/alarms").text
    told = client.get(f"/api/v1/runs/{run.id}/alarms").json()
    assert (told["items"][0]["title"], told["items"][0]["is_open"]) == ("Format falls", False)
    assert told["thresholds"]["format_drop"] == 0.05


def test_rolling_back_goes_to_the_best_checkpoint_before_the_trouble_with_a_lower_rate(
    session: Session, client_for: ClientFor
) -> None:
    run = training(session)
    seen = alarm(session, run, onset=30)
    answer = ask(client_for(Role.TRAINER), f"/runs/{run.id}/alarms/{seen.id}", {"answer": "roll_back"})
    branch = session.get_one(Run, uuid.UUID(answer.json()["branch_run_id"]))
    assert (branch.source_run_id, branch.branch_step, branch.status) == (run.id, 20, RunStatus.QUEUED)
    assert changes_of(session, branch) == [("grpo.learning_rate", 5e-4, 2.5e-4)]
    assert run.stop_requested_at is not None
    assert session.scalars(select(Job.queue).where(Job.run_id == branch.id)).one() is Queue.GPU
    page = client_for(Role.VIEWER).get(f"/runs/{run.id}").text
    assert f'/runs/{branch.id}">from step 20' in page
    assert "branched at step 20 off" in client_for(Role.VIEWER).get(f"/runs/{branch.id}").text


def test_settings_are_changed_by_page_json_and_undone_by_one_click(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    client = client_for(Role.TRAINER)
    form = {"grpo.learning_rate": "0.0002", "grpo.temperature": "1.0", "heldout.every": "20", "budget.minutes": ""}
    assert post(client, f"/runs/{run.id}/settings", **form).status_code == 303
    assert changes_of(session, run) == [("grpo.learning_rate", 5e-4, 2e-4)], "what stays is no change"
    body = {"changes": {"alarms.format_fall": "pause", "budget.minutes": "30"}}
    assert [row["after"] for row in ask(client, f"/runs/{run.id}/settings", body).json()["items"]] == ["pause", 30.0]
    told = client.get(f"/api/v1/runs/{run.id}/settings").json()
    assert told["settings"]["grpo.learning_rate"] == 2e-4
    first = told["changes"][0]
    assert (first["step"], first["asked_by"] is not None) == (None, True)
    assert post(client, f"/runs/{run.id}/settings/{first['id']}/undo").status_code == 303
    assert changes_of(session, run)[-1] == ("grpo.learning_rate", 2e-4, 5e-4)
    page = client.get(f"/runs/{run.id}/configuration").text
    assert "grpo.learning_rate" in page.split('id="run-changes"', 1)[1]
    assert "pending" in page
    assert session.scalars(select(AuditEvent).where(AuditEvent.action == "run.set")).first() is not None


def test_what_cannot_be_changed_is_refused_with_a_message(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    client = client_for(Role.TRAINER)
    body = {"changes": {"grpo.group_size": 4, "grpo.learning_rate": -1, "alarms.format_fall": "shout"}}
    answer = ask(client, f"/runs/{run.id}/settings", body)
    assert answer.status_code == 422
    fields = answer.json()["fields"]
    assert "cannot be changed during training" in fields["grpo.group_size"]
    assert "greater than 0" in fields["grpo.learning_rate"]
    assert "note" in fields["alarms.format_fall"]
    assert changes_of(session, run) == []


def test_a_completed_run_takes_no_change_up(session: Session, client_for: ClientFor) -> None:
    run = training(session, RunStatus.COMPLETED)
    client = client_for(Role.TRAINER)
    answer = ask(client, f"/runs/{run.id}/settings", {"changes": {"heldout.every": 5}})
    assert answer.status_code == 409
    assert "branch from one of its checkpoints" in client.get(f"/runs/{run.id}/alarms").text


def test_the_rate_is_lowered_by_one_click_each_time_by_the_runs_factor(session: Session, client_for: ClientFor) -> None:
    run = training(session, alarms={"rate_factor": 0.1})
    client = client_for(Role.TRAINER)
    for _ in range(2):
        assert post(client, f"/runs/{run.id}/lower-rate").status_code == 303
    assert [round(after, 9) for _, _, after in changes_of(session, run)] == [5e-5, 5e-6]


def test_a_pause_is_requested_and_forgotten_by_a_resume(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    client = client_for(Role.TRAINER)
    assert post(client, f"/runs/{run.id}/pause").status_code == 303
    assert run.stop_requested_at is not None
    assert run.summary["pause_requested"] is True
    assert "pausing" in client.get(f"/runs/{run.id}").text
    run.status = RunStatus.PAUSED
    session.flush()
    assert post(client, f"/runs/{run.id}/resume").status_code == 303
    assert "pause_requested" not in run.summary


def test_a_branch_starts_from_any_checkpoint_with_other_settings(session: Session, client_for: ClientFor) -> None:
    run = training(session, RunStatus.COMPLETED)
    session.add(SettingChange(run_id=run.id, name="grpo.temperature", before=1.0, after=0.9, step=15))
    session.add(SettingChange(run_id=run.id, name="grpo.temperature", before=0.9, after=0.8, step=30))
    session.flush()
    client = client_for(Role.TRAINER)
    answer = ask(client, f"/runs/{run.id}/branch", {"step": 20, "changes": {"grpo.learning_rate": 1e-4}})
    assert answer.status_code == 201
    branch = session.get_one(Run, uuid.UUID(answer.json()["id"]))
    assert changes_of(session, branch) == [("grpo.temperature", 1.0, 0.9), ("grpo.learning_rate", 5e-4, 1e-4)]
    assert branch.policy_id != run.policy_id
    assert client.get(f"/api/v1/runs/{run.id}/branches").json()["items"][0]["branch_step"] == 20
    [checkpoint] = [
        row for row in client.get(f"/api/v1/checkpoints?run_id={run.id}").json()["items"] if row["step"] == 40
    ]
    by_page = post(client, f"/runs/{run.id}/branch", checkpoint_id=checkpoint["id"], is_slower="true")
    second = session.get_one(Run, uuid.UUID(by_page.headers["location"].rpartition("/")[2]))
    assert second.branch_step == 40
    assert changes_of(session, second)[-1][2] == 2.5e-4
    assert ask(client, f"/runs/{run.id}/branch", {"step": 21}).status_code == 422
    assert ask(client, f"/runs/{run.id}/branch", {"step": 0}).json()["branch_step"] == 0


def test_no_branch_where_nothing_remains(session: Session, client_for: ClientFor) -> None:
    run = training(session, grpo={"steps": 40})
    answer = ask(client_for(Role.TRAINER), f"/runs/{run.id}/branch", {"step": 40})
    assert answer.status_code == 409
    assert "the last step of the run" in answer.json()["detail"]


def test_an_evaluation_has_no_alarms(session: Session, client_for: ClientFor) -> None:
    run = make_run(session)
    assert client_for(Role.VIEWER).get(f"/runs/{run.id}/alarms").status_code == 409
    assert client_for(Role.VIEWER).get(f"/api/v1/runs/{uuid.uuid4()}/alarms").status_code == 404


def test_an_author_may_look_but_not_steer(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    seen = alarm(session, run)
    client = client_for(Role.AUTHOR)
    assert client.get(f"/runs/{run.id}/alarms").status_code == 200
    for path in ("pause", "lower-rate", "settings", "branch", f"alarms/{seen.id}"):
        assert post(client, f"/runs/{run.id}/{path}", answer="dismiss").status_code == 403


def test_news_of_alarms_reach_the_open_page(session: Session, client_for: ClientFor) -> None:
    run = training(session, RunStatus.STOPPED)
    alarm(session, run)
    news = client_for(Role.VIEWER).get(f"/runs/{run.id}/alarms/events").text
    assert "Only 80 % of the turns" in news
    assert "event: end" in news


def offered(client: TestClient, run: Run) -> dict[str, str]:
    """Answer by answer what its button says."""
    [item] = client.get(f"/api/v1/runs/{run.id}/alarms").json()["items"]
    return {each["answer"]: each["label"] for each in item["answers"]}


ALWAYS = {"pause", "stop", "dismiss"}


@pytest.mark.parametrize(
    ("name", "helping"),
    [
        ("format_fall", {"lower_rate", "roll_back"}),
        ("importance_ratio", {"lower_rate"}),
        ("suspicion", {"roll_back"}),
        ("failed_rollouts", set()),
        ("stall", set()),
        ("out_of_memory", set()),
    ],
)
def test_an_alarm_offers_what_helps_against_it_on_the_page_as_in_json(
    session: Session, client_for: ClientFor, name: str, helping: set[str]
) -> None:
    run = training(session)
    seen = alarm(session, run, name=name)
    client = client_for(Role.TRAINER)
    answers = offered(client, run)
    assert set(answers) == helping | ALWAYS
    for address in (f"/runs/{run.id}", f"/runs/{run.id}/alarms"):
        page = client.get(address).text
        assert {each for each in AlarmAnswer if f'name="answer" value="{each}"' in page} == set(answers)
        assert ("/branch?alarm_id=" in page) == ("roll_back" in helping)
    for other in {"lower_rate", "roll_back", "save_memory"} - helping:
        refused = ask(client, f"/runs/{run.id}/alarms/{seen.id}", {"answer": other})
        assert refused.status_code == 409
        assert f"{other} has no effect on the alarm" in refused.json()["detail"]
        assert "dismiss" in refused.json()["detail"]
    assert seen.answer is None
    assert changes_of(session, run) == []


def test_an_answered_alarm_offers_nothing(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    alarm(session, run).answer = AlarmAnswer.DISMISS
    session.flush()
    assert offered(client_for(Role.TRAINER), run) == {}


def test_nothing_is_rolled_back_to_where_nothing_was_saved(session: Session, client_for: ClientFor) -> None:
    run = training(session, has_checkpoints=False, recipe="grpo")
    seen = alarm(session, run)
    client = client_for(Role.TRAINER)
    assert set(offered(client, run)) == {"lower_rate"} | ALWAYS
    assert "Roll back" not in client.get(f"/runs/{run.id}").text
    refused = ask(client, f"/runs/{run.id}/alarms/{seen.id}", {"answer": "roll_back"})
    assert refused.status_code == 409
    assert "No checkpoint was saved before" in refused.json()["detail"]


def test_a_roll_back_shows_where_to_before_it_is_done(session: Session, client_for: ClientFor) -> None:
    run = training(session)
    alarm(session, run, onset=30)
    page = client_for(Role.TRAINER).get(f"/runs/{run.id}").text
    asked = "Branch from the last good checkpoint, grpo step 20, with a lower learning rate? This run stops."
    assert f'hx-confirm="{asked}"' in page


@pytest.mark.parametrize(("name", "curve"), [("warm_up_flat", "sft/loss"), ("not_finite", "sft/grad_norm")])
@pytest.mark.parametrize("recipe", ["sft", "sft_then_grpo"])
def test_an_alarm_of_the_warm_up_lowers_the_warm_ups_rate(
    session: Session, client_for: ClientFor, name: str, curve: str, recipe: str
) -> None:
    run = training(session, RunStatus.PAUSED, has_checkpoints=False, recipe=recipe, sft={"learning_rate": 1e-2})
    seen = alarm(session, run, name=name, curve=curve)
    client = client_for(Role.TRAINER)
    assert offered(client, run) == {"lower_rate": "Lower the SFT learning rate", "dismiss": "Dismiss"}
    told = post(client, f"/runs/{run.id}/alarms/{seen.id}", answer="lower_rate")
    assert told.status_code == 303
    assert changes_of(session, run) == [("sft.learning_rate", 1e-2, 5e-3)]
    assert post(client, f"/runs/{run.id}/lower-rate").status_code == 303
    assert changes_of(session, run)[-1] == ("sft.learning_rate", 5e-3, 2.5e-3)


def test_after_the_warm_up_its_rate_changes_nothing(session: Session, client_for: ClientFor) -> None:
    run = training(session, RunStatus.PAUSED)
    seen = alarm(session, run, name="warm_up_flat", curve="sft/loss")
    client = client_for(Role.TRAINER)
    assert set(offered(client, run)) == {"dismiss"}
    assert ask(client, f"/runs/{run.id}/alarms/{seen.id}", {"answer": "lower_rate"}).status_code == 409
    assert "sft.learning_rate" not in client.get(f"/api/v1/runs/{run.id}/settings").json()["settings"]
    refused = ask(client, f"/runs/{run.id}/settings", {"changes": {"sft.learning_rate": 1e-3}})
    assert refused.status_code == 422
    assert changes_of(session, run) == []


def test_a_warm_up_alone_offers_no_setting_of_reinforcement(session: Session, client_for: ClientFor) -> None:
    run = training(session, has_checkpoints=False, recipe="sft")
    settings = client_for(Role.TRAINER).get(f"/api/v1/runs/{run.id}/settings").json()["settings"]
    assert "sft.learning_rate" in settings
    assert not [name for name in settings if name.startswith(("grpo.", "heldout."))]


SIXTEEN = {"tasks_per_step": 4, "group_size": 4}


@pytest.mark.parametrize(
    ("choices", "has_checkpoints", "label", "changed"),
    [
        ({"grpo": SIXTEEN}, True, "Use 2 micro-batches and resume", ("grpo.micro_batches", 1, 2)),
        (
            {"grpo": {"tasks_per_step": 5, "group_size": 3, "micro_batches": 3}},
            True,
            "Use 15 micro-batches and resume",
            ("grpo.micro_batches", 3, 15),
        ),
        (
            {"grpo": {**SIXTEEN, "micro_batches": 8}, "hardware": {"processes": 2}},
            True,
            "Use gradient checkpointing and resume",
            ("hardware.gradient_checkpointing", False, True),
        ),
        (
            {"grpo": SIXTEEN},
            False,
            "Use gradient checkpointing and resume",
            ("hardware.gradient_checkpointing", False, True),
        ),
    ],
    ids=["twice as many parts", "what divides", "no more parts among processes", "in the warm-up"],
)
def test_one_click_saves_memory_and_resumes(
    session: Session,
    client_for: ClientFor,
    choices: dict[str, Any],
    has_checkpoints: bool,
    label: str,
    changed: tuple[str, Any, Any],
) -> None:
    run = training(session, RunStatus.PAUSED, has_checkpoints=has_checkpoints, **choices)
    seen = alarm(session, run, name="out_of_memory")
    client = client_for(Role.TRAINER)
    assert offered(client, run)["save_memory"] == label
    assert label in client.get(f"/runs/{run.id}").text
    assert post(client, f"/runs/{run.id}/alarms/{seen.id}", answer="save_memory").status_code == 303
    assert changes_of(session, run) == [changed]
    assert run.status is RunStatus.QUEUED
    assert session.scalars(select(Job.queue).where(Job.run_id == run.id)).all() == [Queue.GPU, Queue.GPU]
    assert (seen.answer, seen.answered_by is not None) == (AlarmAnswer.SAVE_MEMORY, True)


def test_where_no_memory_is_left_to_save_none_is_offered(session: Session, client_for: ClientFor) -> None:
    choices = {"grpo": {**SIXTEEN, "micro_batches": 16}, "hardware": {"gradient_checkpointing": True}}
    run = training(session, RunStatus.PAUSED, **choices)
    alarm(session, run, name="out_of_memory")
    assert set(offered(client_for(Role.TRAINER), run)) == {"dismiss"}


def test_parts_that_do_not_divide_are_refused_with_a_message(session: Session, client_for: ClientFor) -> None:
    run = training(session, grpo=SIXTEEN, hardware={"processes": 2})
    client = client_for(Role.TRAINER)
    for parts, told in (
        (3, "16 episodes per step cannot be divided into 3 micro-batches"),
        (16, "Each of 2 processes learns from 8"),
    ):
        answer = ask(client, f"/runs/{run.id}/settings", {"changes": {"grpo.micro_batches": parts}})
        assert answer.status_code == 422
        assert told in answer.json()["fields"]["grpo.micro_batches"]
    made = post(
        client, f"/runs/{run.id}/settings", **{"grpo.micro_batches": "4", "hardware.gradient_checkpointing": "true"}
    )
    assert made.status_code == 303
    assert "from the next resume" in client.get(made.headers["location"]).text


def test_a_branch_saves_memory_as_its_source_does_by_now(session: Session, client_for: ClientFor) -> None:
    run = training(session, RunStatus.PAUSED, grpo=SIXTEEN)
    session.add(SettingChange(run_id=run.id, name="grpo.micro_batches", before=1, after=4, step=41))
    session.flush()
    answer = ask(client_for(Role.TRAINER), f"/runs/{run.id}/branch", {"step": 20})
    branch = session.get_one(Run, uuid.UUID(answer.json()["id"]))
    assert changes_of(session, branch) == [("grpo.micro_batches", 1, 4)]
