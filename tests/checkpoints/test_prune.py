"""Weights go, rows and figures stay; what is used never goes."""

from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.pruning import delete_leftovers, plan_by_id, plan_by_rule, prune, prune_by_rule
from backend.checkpoints.tables import Export
from backend.core.session import run_after_commit
from backend.domain.checkpoints.retention import KeepReason, KeepRule
from backend.domain.vocabulary import ExportStatus, Role, RunKind, RunStatus
from backend.studies.tables import StudyCheckpoint
from backend.team.tables import AuditEvent
from tests.checkpoints.conftest import TrainedRun, is_there
from tests.factories import make_checkpoint, make_member, make_policy, make_run
from tests.studies.worlds import make_effort_study, make_onset_study


def pruned(saved: dict[str, object]) -> set[str]:
    return {name for name, each in saved.items() if each.pruned_at is not None}


def test_the_rule_prunes_all_but_the_best_and_the_last(session: Session, store: Path, trained: TrainedRun):
    run, saved = trained(steps=(20, 40, 60), rewards=(0.5, 0.4, 0.3))
    done = prune_by_rule(session, run.id, KeepRule(last=1))
    assert pruned(saved) == {"grpo 40"}
    assert done.freed_bytes == 8
    assert is_there(store, saved["grpo 40"])  # only the commit lets them go
    run_after_commit(session)
    assert not is_there(store, saved["grpo 40"])
    assert all(is_there(store, each) for name, each in saved.items() if name != "grpo 40")
    assert saved["grpo 40"].heldout_reward == 0.4


def test_what_the_store_did_not_delete_is_deleted_later(session: Session, store: Path, trained: TrainedRun):
    run, saved = trained()
    prune_by_rule(session, run.id, KeepRule(last=1))
    session.info.pop("after_commit")  # as if the process had died after the commit
    assert is_there(store, saved["grpo 20"])
    delete_leftovers(session)
    assert not is_there(store, saved["grpo 20"])
    assert is_there(store, saved["grpo 60"])


def test_pruning_again_does_nothing(session: Session, trained: TrainedRun):
    run, _ = trained()
    assert prune_by_rule(session, run.id, KeepRule(last=1)).to_delete
    assert not prune_by_rule(session, run.id, KeepRule(last=1)).to_delete


@pytest.mark.parametrize("kind", [RunKind.EVALUATION, RunKind.TRAINING])
def test_what_a_run_uses_stays(session: Session, trained: TrainedRun, kind: RunKind):
    run, saved = trained()
    make_run(session, kind=kind, checkpoint_id=saved["grpo 20"].id)
    prune_by_rule(session, run.id, KeepRule(last=1))
    assert pruned(saved) == {"grpo 40"}


def test_where_a_run_branched_off_stays(session: Session, trained: TrainedRun):
    run, saved = trained()
    make_run(session, kind=RunKind.TRAINING, source_run_id=run.id, branch_step=40)
    prune_by_rule(session, run.id, KeepRule(last=1))
    assert pruned(saved) == {"grpo 20"}


def test_the_base_of_an_adapter_stays(session: Session, trained: TrainedRun):
    """Also when the run that began there was deleted."""
    run, saved = trained()
    record = {"base": "checkpoint:…", "artifact": saved["grpo 20"].artifact, "dtype": "float32", "rank": 4, "alpha": 8}
    make_checkpoint(session, make_policy(session), adapter=record)
    prune_by_rule(session, run.id, KeepRule(last=1))
    assert pruned(saved) == {"grpo 40"}


@pytest.mark.parametrize(
    ("status", "stays"), [(ExportStatus.COMPLETED, True), (ExportStatus.QUEUED, True), (ExportStatus.REFUSED, False)]
)
def test_what_was_exported_stays(session: Session, trained: TrainedRun, status: ExportStatus, stays: bool):
    run, saved = trained()
    session.add(Export(checkpoint_id=saved["grpo 20"].id, run_id=run.id, status=status))
    session.flush()
    prune_by_rule(session, run.id, KeepRule(last=1))
    assert (saved["grpo 20"].pruned_at is None) is stays


def test_what_someone_plays_against_now_stays(session: Session, trained: TrainedRun):
    _, saved = trained()
    told = {"play": {"mover": {"checkpoint_id": str(saved["grpo 20"].id)}}}
    playing = make_run(session, kind=RunKind.PLAY, status=RunStatus.RUNNING, configuration=told)
    assert plan_by_id(session, [saved["grpo 20"].id]).refused[0].binding == [KeepReason.PLAYING]
    playing.status = RunStatus.COMPLETED
    assert plan_by_id(session, [saved["grpo 20"].id]).to_delete


def test_where_the_source_of_an_unfinished_branch_began_stays(session: Session, trained: TrainedRun):
    run, saved = trained()
    told = {"branch": {"start": str(saved["sft"].id)}}
    fields = {"source_run_id": run.id, "branch_step": 20, "configuration": told}
    branch = make_run(session, kind=RunKind.TRAINING, status=RunStatus.PAUSED, **fields)
    assert plan_by_id(session, [saved["sft"].id]).refused[0].binding == [KeepReason.BRANCHED]
    branch.status = RunStatus.COMPLETED
    session.flush()
    assert plan_by_id(session, [saved["sft"].id]).to_delete


def test_manually_goes_what_only_the_rule_keeps(session: Session, trained: TrainedRun):
    _, saved = trained(rewards=(0.5, 0.6, 0.4))
    actor = make_member(session, Role.TRAINER)
    plan = plan_by_id(session, [saved["grpo 40"].id, saved["sft"].id])
    assert [each.reasons for each in plan.to_delete] == [[KeepReason.WARM_UP], [KeepReason.BEST]]
    prune(session, actor, plan)
    assert pruned(saved) == {"grpo 40", "sft"}
    assert {event.action for event in session.scalars(select(AuditEvent))} >= {"checkpoint.prune"}


def test_what_a_resume_needs_stays(session: Session, trained: TrainedRun):
    _, saved = trained(status=RunStatus.STOPPED)
    plan = plan_by_id(session, [saved["sft"].id, saved["grpo 20"].id])
    assert [each.checkpoint.step for each in plan.to_delete] == [20]
    assert plan.refused[0].binding == [KeepReason.RESUME]


def test_a_mark_holds_until_it_is_taken_away(session: Session, trained: TrainedRun):
    run, saved = trained()
    saved["grpo 20"].is_kept = True
    session.flush()
    assert plan_by_id(session, [saved["grpo 20"].id]).refused
    saved["grpo 20"].is_kept = False
    session.flush()
    assert [each.checkpoint.step for each in plan_by_rule(session, run_id=run.id, rule=None).to_delete] == [20, 40]


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.COMPLETED])
def test_what_an_effort_study_compares_stays(session: Session, trained: TrainedRun, status: RunStatus):
    """Also while it waits, and nothing was played yet."""
    run, saved = trained()
    study = make_effort_study(session, run, status=status)
    session.add(StudyCheckpoint(study_id=study.id, checkpoint_id=saved["grpo 20"].id, stage="grpo", step=20))
    session.flush()
    prune_by_rule(session, run.id, KeepRule(last=1))
    assert pruned(saved) == {"grpo 40"}
    assert plan_by_id(session, [saved["grpo 20"].id]).refused[0].binding == [KeepReason.STUDIED]


def test_what_an_onset_study_may_sample_stays_until_it_has_finished(session: Session, trained: TrainedRun):
    run, saved = trained(steps=(20, 40, 60, 80))
    study = make_onset_study(session, run, outcome=None, last_step=40, status=RunStatus.QUEUED)
    prune_by_rule(session, run.id, KeepRule(last=1))
    assert pruned(saved) == {"grpo 60"}
    assert plan_by_id(session, [saved["sft"].id]).refused, "the base rate is its"
    sample = StudyCheckpoint(study_id=study.id, checkpoint_id=saved["grpo 20"].id, stage="grpo", step=20)
    study.status = RunStatus.COMPLETED
    session.add(sample)
    session.flush()
    prune_by_rule(session, run.id, KeepRule(last=1))
    assert pruned(saved) == {"grpo 40", "grpo 60"}


def test_what_became_the_best_after_the_plan_stays(session: Session, trained: TrainedRun):
    """An export or a verdict may make it the best while the run continues."""
    run, saved = trained()
    plan = plan_by_rule(session, run_id=run.id, rule=None)
    saved["grpo 20"].is_best = True
    session.flush()
    done = prune(session, None, plan)
    assert pruned(saved) == {"grpo 40"}
    assert [each.reasons for each in done.refused] == [[KeepReason.BEST]]


def test_what_came_into_use_after_the_plan_stays(session: Session, trained: TrainedRun):
    run, saved = trained()
    plan = plan_by_rule(session, run_id=run.id, rule=None)
    make_run(session, kind=RunKind.EVALUATION, checkpoint_id=saved["grpo 20"].id)
    done = prune(session, None, plan)
    assert pruned(saved) == {"grpo 40"}
    assert [each.reasons for each in done.refused] == [[KeepReason.EVALUATED]]


def test_all_runs_are_pruned_each_by_its_own_rule(session: Session, trained: TrainedRun):
    _, lean = trained(keep={"keep_last": 1})
    _, rich = trained(keep={"keep_last": 1, "keep_every": 20})
    prune(session, None, plan_by_rule(session, run_id=None, rule=None))
    assert pruned(lean) == {"grpo 20", "grpo 40"}
    assert pruned(rich) == set()


def test_an_orphan_is_left_alone_by_rules(session: Session, trained: TrainedRun):
    _, saved = trained()
    saved["grpo 20"].run_id = None
    session.flush()
    plan = plan_by_rule(session, run_id=None, rule=None)
    assert saved["grpo 20"].id not in {each.checkpoint.id for each in plan.to_delete}
