"""The last honest checkpoint: before every known onset, before what people judged, before what was only flagged."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.vocabulary import Phase, Verdict
from backend.runs.tables import Run
from backend.studies.patterns import known_onsets, last_honest_checkpoint, patterns_of
from tests.factories import make_flag, make_rollouts
from tests.studies.worlds import CLUSTER, PAID, judged, make_onset_study, make_training


def flagged(session: Session, run: Run, step: int, **fields: object) -> None:
    (rollout,) = make_rollouts(session, run, [PAID], phase=Phase.TRAIN, step=step)
    make_flag(session, run, rollout, **{"detector": "judge_directed", "training_step": step, **fields})


def step_of(checkpoint: Checkpoint | None) -> tuple[str, int] | None:
    return (checkpoint.stage, checkpoint.step) if checkpoint else None


def honest(session: Session, run: Run, detector: str | None = None) -> tuple[str, int] | None:
    return step_of(last_honest_checkpoint(session, run, detector=detector))


def test_nothing_is_known_of_a_run_without_any_sign(session: Session) -> None:
    assert honest(session, make_training(session)) is None


def test_weights_that_played_a_hack_are_not_honest(session: Session) -> None:
    run = make_training(session)
    judged(session, run, (41,))
    assert honest(session, run) == ("grpo", 30), "the weights of step 40 played step 41"
    judged(session, run, (12,), Verdict.BROKEN_REWARD)
    assert honest(session, run) == ("grpo", 10)
    judged(session, run, (3,), Verdict.HONEST)
    assert honest(session, run) == ("grpo", 10)
    judged(session, run, (2,))
    assert honest(session, run) == ("sft", 300), "no checkpoint is before: what reinforcement began with"


def test_single_hacks_before_a_known_onset_are_the_base_rate(session: Session) -> None:
    run = make_training(session)
    judged(session, run, (5, 60))
    make_onset_study(session, run, 40, 50)
    assert honest(session, run) == ("grpo", 40)
    judged(session, run, (22,), detector="tampering", cluster="exit")
    assert honest(session, run) == ("grpo", 20), "another pattern, whose onset nobody searched for"
    make_onset_study(session, run, 10, 20, detector="tampering")
    assert honest(session, run) == ("grpo", 10), "the earliest onset counts"


def test_without_verdicts_the_first_flag_counts_of_one_detector_or_of_all(session: Session) -> None:
    run = make_training(session)
    flagged(session, run, 33)
    flagged(session, run, 62, detector="gibberish")
    assert honest(session, run) == ("grpo", 30)
    assert honest(session, run, "gibberish") == ("grpo", 60)
    assert honest(session, run, "tampering") is None


def test_pruned_weights_are_passed_over(session: Session) -> None:
    run = make_training(session, (10, 20, 30))
    judged(session, run, (33,))
    found = last_honest_checkpoint(session, run)
    assert found is not None
    found.pruned_at = datetime.now(UTC)
    session.flush()
    assert honest(session, run) == ("grpo", 20)


def test_a_branch_goes_back_to_what_its_source_began_with(session: Session) -> None:
    source = make_training(session)
    start = last_honest_checkpoint(session, _judged_at_once(session, source))
    assert start is not None
    branch = make_training(
        session, (50, 60), configuration={**source.configuration, "branch": {"start_id": str(start.id)}}
    )
    judged(session, branch, (45,))
    assert last_honest_checkpoint(session, branch) is start


def _judged_at_once(session: Session, run: Run) -> Run:
    judged(session, run, (1,))
    return run


def test_patterns_are_reported_with_what_stands_against_searching(session: Session) -> None:
    run = make_training(session)
    judged(session, run, (30, 50, 90))
    flagged(session, run, 7, cluster=CLUSTER)
    judged(session, run, (31,), Verdict.HONEST, detector="gibberish", cluster=None)
    judged(session, run, (32,), detector="picked", cluster=None)
    found = {(each.detector, each.cluster): each for each in patterns_of(session, run)}
    assert set(found) == {("judge_directed", None), ("judge_directed", CLUSTER), ("picked", None)}
    pattern = found["judge_directed", CLUSTER]
    assert (pattern.flagged, pattern.confirmed, pattern.first_step, pattern.middle_step) == (4, 3, 30, 50)
    assert pattern.version_id == run.version_id
    assert pattern.obstacle == ""
    assert found["picked", None].obstacle


def test_a_chart_is_marked_where_the_newest_search_found_it(session: Session) -> None:
    run = make_training(session)
    make_onset_study(session, run, 20, 30)
    make_onset_study(session, run, 40, 50)
    make_onset_study(session, run, 10, 60, detector="tampering")
    assert [(onset.low, onset.high) for onset in known_onsets(session, run.id)] == [(40, 50), (10, 60)]
