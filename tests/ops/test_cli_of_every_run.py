"""The commands that list and show, over runs of every kind and state with whatever they lack."""

from typing import Any

import pytest

from backend.cli.output import BAD_RESULT, OK
from backend.core.session import transaction
from backend.domain.vocabulary import ErrorKind, Phase, PolicyKind, RolloutStatus, RunKind, RunStatus
from backend.runs.tables import Run
from tests.factories import make_checkpoint, make_policy, make_rollouts, make_run
from tests.ops.commands import Command, proctor, server

__all__ = ["proctor", "server"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ESTIMATE = {"mean": 0.5, "low": 0.4, "high": 0.6, "count": 4, "levels": {}}
SUMMARIES: dict[RunKind, list[dict[str, Any]]] = {
    RunKind.EVALUATION: [
        {"reward": ESTIMATE, "columns": {"win": ESTIMATE, "format": None}, "rollouts": 4, "cost": 0.0},
        {"reward": None, "columns": {}, "rollouts": 4, "failed": 4, "cost": None, "groups": None},
    ],
    RunKind.TRAINING: [
        {"best": {"stage": "grpo", "step": 7, "reward": 0.5}, "heldout_grpo": {"step": 7, "reward": ESTIMATE}},
        {"budget": {"used_up": "The time is used up."}, "gate": {"is_open": False, "problems": ["bad"]}},
    ],
    RunKind.CHECK: [{"certificate": "failed", "passed": 3, "failed": 1, "seconds": 2.0, "drift": None, "weaker": []}],
    RunKind.PLAY: [{"reward": 1.0, "turns": 3}, {"reward": None, "turns": 0}],
    RunKind.RESCORE: [{"reward": ESTIMATE, "columns": {"win": ESTIMATE}, "rescoring": {"grounds": "why"}}],
    RunKind.REPLAY: [{"reward": {**ESTIMATE, "low": None, "high": None}, "columns": {}, "rescoring": {}}],
}
"""As jobs leave them, and empty: a run that has not begun has none."""
LISTS = [
    *("runs", "workers", "env list", "policy list", "checkpoints list", "judge list", "question list"),
    *("data lessons list", "review", "review stats", "detectors", "notifications list"),
    *("notifications destinations", "notifications deliveries", "token list", "leaderboard tictactoe"),
]
SHOWN_OF_ANY = ["run show", "rollouts", "rollouts --transcript -n 9"]
OF_A_RUN = [
    *("run alarms", "run interventions", "run safeguards", "run watch", "run config", "rollouts list"),
    *("judge results", "question results", "run onset", "run effort"),
]


@pytest.mark.parametrize("kind", RunKind)
def test_every_run_is_listed_and_shown(kind: RunKind, proctor: Command) -> None:
    ids = _make_runs(kind)

    listed = proctor("runs", "--limit", "100")
    assert listed.status == 0, listed.err
    assert listed.out.count(str(kind)) >= len(ids)
    for name, run_id in ids.items():
        for words in SHOWN_OF_ANY:
            told = proctor(*_of_run(words, run_id))
            assert told.status == 0, (name, words, told)
    for words in OF_A_RUN:
        told = proctor(*_of_run(words, ids["completed 1"]))
        is_bad_result = told.status == BAD_RESULT and told.out  # of a check that failed, for example
        assert told.status == OK or is_bad_result or told.err.startswith("proctor: "), (words, told)


def test_lists_with_runs_of_every_kind(proctor: Command) -> None:
    for kind in RunKind:
        _make_runs(kind)

    for words in LISTS:
        told = proctor(*words.split())
        assert told.status == 0, (words, told)


def _of_run(words: str, run_id: str) -> list[str]:
    """With the run's id before the options."""
    command, _, options = words.partition(" --")
    return [*command.split(), run_id, *(f"--{options}".split() if options else [])]


def test_a_hand_played_run_is_listed_with_its_reward(proctor: Command) -> None:
    with transaction() as session:
        make_run(session, kind=RunKind.PLAY, name="by hand", policy=None, summary={"reward": 0.25, "turns": 3})

    (line,) = [line for line in proctor("runs").out.splitlines() if "by hand" in line]

    assert "0.250" in line


def _make_runs(kind: RunKind) -> dict[str, str]:
    """Their ids by what they are."""
    with transaction() as session:
        policy = make_policy(session, f"of {kind}", kind=PolicyKind.LOCAL)
        source = make_run(session, policy=policy)
        made: dict[str, Run] = {}
        for status in RunStatus:
            summaries = SUMMARIES[kind] if status is RunStatus.COMPLETED else SUMMARIES[kind][:1]
            for place, summary in enumerate([{}, *summaries] if status.is_over else [{}]):
                begun: dict[str, Any] = (
                    {} if status is not RunStatus.QUEUED else {"started_at": None, "ended_at": None, "attempt": 0}
                )
                run = make_run(
                    session,
                    source.version,
                    policy,
                    kind=kind,
                    status=status,
                    summary=summary,
                    source_run_id=source.id if kind in {RunKind.RESCORE, RunKind.REPLAY} else None,
                    reason="It broke." if status is RunStatus.FAILED else None,
                    **begun,
                )
                if place == 0 and kind is not RunKind.TRAINING:
                    run.policy = None
                made[f"{status} {place}"] = run
        phase = Phase.TRAIN if kind is RunKind.TRAINING else Phase.EVALUATION
        played = made["completed 1"]
        columns = len(played.columns)
        make_rollouts(session, played, [[0.5] * columns, None], phase=phase, step=1 if phase is Phase.TRAIN else None)
        for group, state in enumerate((RolloutStatus.FAILED, RolloutStatus.CANCELLED)):
            make_rollouts(
                session,
                made[f"stopped {group}"],
                [None],
                phase=phase,
                step=1 if phase is Phase.TRAIN else None,
                status=state,
                error_kind=ErrorKind.ENVIRONMENT if state is RolloutStatus.FAILED else None,
                steps=[],
                messages=[],
                excerpt="",
                opening={},
                turns=0,
            )
        if kind is RunKind.TRAINING:
            make_checkpoint(session, policy, played, step=0)
            make_checkpoint(session, policy, played, step=5, is_best=True, heldout={"reward": None})
        return {name: str(run.id) for name, run in made.items()}
