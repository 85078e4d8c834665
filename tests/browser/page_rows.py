"""Made-up rows of pages that need a job or a form before they exist: imports, exports, hand play, deletions, links."""

import uuid
from dataclasses import asdict
from pathlib import Path
from tempfile import NamedTemporaryFile

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Export
from backend.core.artifacts import put_file
from backend.core.queue import keep_answer
from backend.deletions.schemas import DeleteItems
from backend.deletions.service import delete_items
from backend.domain.environments.certificate import CheckResult
from backend.domain.environments.import_report import Breakdown, ImportReport, Leak
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.notifications.notices import DestinationKind, NoticeKind
from backend.domain.projects.access import ProjectAccess
from backend.domain.training.example_lines import write_line
from backend.domain.training.examples import Conversation, ExampleStatistics
from backend.domain.vocabulary import CheckStatus, ExportStatus, Role, RunKind, RunStatus, Split
from backend.environments import red_team
from backend.environments.library import load_package, render_template
from backend.environments.play import choose_task, start_play
from backend.environments.schemas import StartAttack
from backend.environments.service import create_environment, start_check
from backend.environments.tables import Certificate, EnvironmentImport, EnvironmentVersion
from backend.graders.service import try_grader
from backend.graders.tables import Grader
from backend.notifications.outbox import announce
from backend.notifications.tables import NoticeDestination
from backend.projects.schemas import CreateProject
from backend.projects.service import create_project
from backend.rollouts.regrading.service import score_by_draft
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.shares.schemas import CreateShare
from backend.shares.service import create_share
from backend.sweeps.tables import Sweep
from backend.team.tables import Person
from backend.training.tables import ExampleFile
from backend.web.identity import Actor
from tests import factories
from tests.checkpoints.transfer_worlds import finished_report
from tests.environments.test_red_team import EXPLOIT
from tests.sweeps.worlds import complete, make_sweep
from workers.tasks.sweeps import advance

DRAFTED = "guess_the_word"


def make_page_rows(
    session: Session, admin: Person, version: EnvironmentVersion, evaluation: Run, rollouts: list[Rollout]
) -> dict[str, str]:
    """`version` gets a failed certificate and hand play, `evaluation` a regraded copy, a link and a grader's test."""
    actor = Actor(admin.id, Role.ADMIN, name=admin.name, access=ProjectAccess(Role.ADMIN))
    names = _authored(session)
    _certificate(session, version)
    policy = factories.make_policy(session, "retired")
    deleted = factories.make_run(session, version, policy, name="a run that was deleted")
    delete_items(session, actor, DeleteItems(runs=[str(deleted.id)]))
    batch = new_id()
    copy = factories.make_run(
        *(session, version, evaluation.policy),
        kind=RunKind.REPLAY,
        source_run_id=evaluation.id,
        name=f"{evaluation.name}, replayed",
        configuration={"batch": str(batch)},
    )
    columns = [rollout.columns for rollout in rollouts]
    for again, original in zip(factories.make_rollouts(session, copy, columns, group_size=4), rollouts, strict=True):
        again.source_id = original.id
    project = create_project(session, actor, CreateProject(name="Puzzles", description="Word games and sums."))
    for name in ("team-chat", "archive"):
        configuration = {"url": f"https://{name}.example/hook"}
        session.add(NoticeDestination(name=name, kind=DestinationKind.WEBHOOK, configuration=configuration))
    session.flush()
    announce(
        session,
        kind=NoticeKind.ALARM,
        title="grid-mini is paused after step 60: reward_jump",
        text="The mean reward rose from 0.412 to 0.873 within three steps.",
        path="/runs",
        for_destinations=True,
    )
    export = _export(session, version)
    task = choose_task(version.typed_manifest, Split.HELDOUT, index=0)
    link = create_share(session, actor, CreateShare(kind="run", item=[str(evaluation.id)], days=7))[1]
    grader = Grader(
        name="with_a_test", kind=GraderKind.JUDGE, policy_id=evaluation.policy_id, settings={"kind": "judge"}
    )
    session.add(grader)
    session.flush()
    return names | {
        "copy": str(copy.id),
        "copied_rollout": str(rollouts[0].id),
        "other_rollout": str(rollouts[1].id),
        "batch": str(batch),
        "project": str(project.id),
        "shared": link.rpartition("/")[2],
        "editable": str(grader.id),
        "grader_try": str(try_grader(session, grader, [rollouts[0].id]).id),
        "examples": str(_examples(session).id),
        "export": str(export.id),
        "checkpoint": str(export.checkpoint_id),
        "import": str(_import(session).id),
        "play": str(start_play(session, actor, version.environment, version, task).id),
        "sweep": str(_sweep(session, actor, version).id),
        "draft_score": str(score_by_draft(session, rollouts[0].id).id),
    }


def _authored(session: Session) -> dict[str, str]:
    """An environment with two versions and a draft that was attacked."""
    files = render_template("single_turn", DRAFTED)
    environment = create_environment(session, None, DRAFTED, files)
    for number, notes in enumerate(("", "A second version."), start=1):
        factories.make_package_version(session, files | {"notes.txt": f"{notes}\n"}, environment, number)
    attack = red_team.start(session, environment, StartAttack(seconds=10))
    keep_answer(session, attack.id, {"draft_revision": 1, "exploits": [EXPLOIT], "notes": [], "error": ""})
    return {"drafted": DRAFTED}


def _sweep(session: Session, actor: Actor, version: EnvironmentVersion) -> Sweep:
    """Enough completed runs for the importance of settings, and one that is at work."""
    sweep = make_sweep(session, actor=actor, version=version, name="rates of a night")
    advance(session, sweep)
    for number in range(1, 9):
        complete(session, sweep, number, number / 20, number / 10)
    return sweep


def _certificate(session: Session, version: EnvironmentVersion) -> None:
    check = start_check(session, None, version, version.environment.name)
    check.status = RunStatus.COMPLETED
    results = [
        CheckResult("gold", "The gold policy reaches the top.", CheckStatus.FAILED, "Mean 0.4 of 1.", {"n": 8}, 1.5),
        CheckResult("seeds", "Seeds repeat episodes.", CheckStatus.WARNED, "2 of 8 differ.", {"n": 8}, 0.5),
        CheckResult("starts", "The package starts.", CheckStatus.PASSED, "It starts in 0.4 s.", {}, 0.4),
    ]
    certificate = Certificate(version_id=version.id, run_id=check.id, status=CheckStatus.FAILED)
    certificate.results = [asdict(each) for each in results]
    session.add(certificate)
    session.flush()


def _examples(session: Session) -> ExampleFile:
    statistics = ExampleStatistics()
    said = [{"role": "user", "content": "Your move?"}, {"role": "assistant", "content": "<move>4</move>"}]
    statistics.add(Conversation(said, (True,), reward=1.0, level=0, task="3"))
    row = ExampleFile(name="openings.jsonl", artifact=f"lessons/{new_id()}", size_bytes=4200, conversations=1)
    with NamedTemporaryFile() as file:
        file.write(write_line(statistics.examples[0]))
        file.flush()
        put_file(Path(file.name), row.artifact)
    row.statistics = statistics.as_json()
    session.add(row)
    session.flush()
    return row


def _export(session: Session, version: EnvironmentVersion) -> Export:
    policy = factories.make_policy(session, "exported")
    run = factories.make_run(session, version, policy, kind=RunKind.TRAINING, name="exported: GRPO")
    checkpoint = factories.make_checkpoint(session, policy, run, stage="grpo", step=20)
    evaluations: list[uuid.UUID] = [factories.make_run(session, checkpoint_id=checkpoint.id).id for _ in range(2)]
    export = Export(
        checkpoint_id=checkpoint.id,
        run_id=run.id,
        status=ExportStatus.COMPLETED,
        artifact=f"exports/{new_id()}.zip",
        card="# exported\n\nA small policy.\n",
        passport={"verdict": "kept", "files": {"model.safetensors": "0" * 64}},
        transfer=finished_report(*evaluations).model_dump(mode="json"),
    )
    session.add(export)
    session.flush()
    return export


def _import(session: Session) -> EnvironmentImport:
    report = ImportReport(
        starts=True,
        start_seconds=1.2,
        columns=["win"],
        breakdowns=[Breakdown(path="observation.metadata.parts", names=["win", "speed"], adds_up=True)],
        leaks=[Leak(where="state.target", what="42", in_observation=False)],
        state_fields=["target", "step_count"],
        action_schema={"type": "object", "properties": {"cell": {"type": "integer"}}},
        opening={"board": ".........", "legal": [0, 1, 2]},
    )
    row = EnvironmentImport(
        name="foreign_game",
        kind="openenv",
        source="https://example.org/foreign_game.git",
        files=load_package("tictactoe"),
        manifest={"name": "foreign_game"},
        report=report.model_dump(mode="json"),
        status=RunStatus.COMPLETED,
        build_log="Collecting openenv\nBuilt in 12 s\n",
    )
    session.add(row)
    session.flush()
    return row
