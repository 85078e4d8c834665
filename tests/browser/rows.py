"""Made-up rows for viewing pages: a team, runs of every kind, flags."""

import random
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Worker
from backend.domain.training.alarms import CLEARED
from backend.domain.training.preflight.measured import TaskSuccess, success_finding
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import AlarmAction, Phase, PreflightStatus, Role, RunKind, RunStatus, Severity
from backend.environments.service import import_builtins
from backend.environments.tables import Environment, EnvironmentVersion
from backend.team.tables import ApiToken, SignInLink, WebSession
from backend.training.preflight import findings_at_once
from backend.training.tables import Alarm, Preflight, SettingChange
from backend.web.identity import hash_secret, new_secret
from tests import factories
from tests.browser.installation import cookie_for
from tests.browser.judging_rows import make_judging_rows
from tests.browser.page_rows import make_page_rows
from tests.browser.recipe_rows import make_recipe_rows


def make_rows(session: Session) -> dict[str, str]:
    """A team, runs of every kind and flags; gives names for paths, such as `{flag}`."""
    admin = factories.make_person(session, Role.ADMIN, "Ada Lovelace")
    admin.password_hash = "set"
    factories.make_person(session, Role.REVIEWER, "Rae Okafor").password_hash = "set"
    factories.make_person(session, Role.TRAINER, "Tom Baker").disabled_at = datetime.now(UTC)
    import_builtins(session)
    version = session.scalars(select(EnvironmentVersion).join(Environment).where(Environment.name == "tictactoe")).one()
    version.environment = session.get_one(Environment, version.environment_id)
    policy = factories.make_policy(session, "grid-mini")
    training = _training(session, version, policy)
    evaluation = factories.make_run(session, version, policy, name="grid-mini on 400 held-out tasks")
    evaluation.summary = {"reward": {"mean": 0.742, "low": 0.71, "high": 0.77}}
    rollouts = factories.make_rollouts(session, evaluation, factories.random_rows(48, failing=0.05), group_size=4)
    flag = _flags(session, training, evaluation, rollouts)
    for name, status, progress in (
        ("tictactoe: random-legal", RunStatus.RUNNING, {"phase": "play", "done": 130, "total": 400}),
        ("number_guess: checks", RunStatus.QUEUED, {}),
    ):
        factories.make_run(session, version, policy, name=name, status=status, progress=progress, ended_at=None)
    session.add(
        Worker(
            name="laptop-cpu",
            queues=["cpu", "gpu"],
            capabilities={
                "flavour": "transformers",
                "cpus": 2,
                "memory_mb": 24000,
                "engines": {"torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0", "peft": "0.21.2"},
                "cuda": False,
                "bf16": False,
                "launcher": "jail",
            },
        )
    )
    preflight = _preflight(session, version)
    link = new_secret()
    session.add(
        SignInLink(person_id=admin.id, token_hash=hash_secret(link), expires_at=datetime.now(UTC) + timedelta(hours=1))
    )
    _access(session, admin)
    session.flush()
    return (
        {
            "cookie": cookie_for(session, admin),
            "flag": str(flag[0].id),
            "run_flag": str(flag[1].id),
            "training": str(training.id),
            "branch": str(_steered(session, training, admin).id),
            "preflight": str(preflight.id),
            "evaluation": str(evaluation.id),
            "rollout": str(rollouts[0].id),
            "policy": str(policy.id),
            "link": link,
        }
        | make_judging_rows(session)
        | make_page_rows(session, admin, version, evaluation, rollouts)
        | make_recipe_rows(session)
    )


def _access(session: Session, admin: factories.Person) -> None:
    """Sessions in other browsers, and tokens of which one created another."""
    now = datetime.now(UTC)
    for device, address, days in (
        ("Safari on iPhone", "2001:db8:31:7::9a4f", 2),
        ("Firefox on Linux", "192.0.2.17", 9),
    ):
        seen = now - timedelta(days=days)
        times = {"created_at": seen - timedelta(days=3), "seen_at": seen, "expires_at": now + timedelta(days=50)}
        hashed = hash_secret(new_secret())
        session.add(
            WebSession(person_id=admin.id, token_hash=hashed, csrf_token="c", device=device, address=address, **times)
        )
    parent = None
    for name, role, is_read_only in (("nightly evaluation", Role.TRAINER, False), ("dashboard", Role.VIEWER, True)):
        token = ApiToken(
            person_id=admin.id,
            name=name,
            prefix="pt_x3Ky9a",
            token_hash=hash_secret(new_secret()),
            role=role,
            is_read_only=is_read_only,
            parent_id=parent,
            expires_at=now + timedelta(days=60),
        )
        session.add(token)
        session.flush()
        parent = token.id


def _training(session: Session, version: factories.EnvironmentVersion, policy: factories.Policy) -> factories.Run:
    run = factories.make_run(
        session, version, policy, kind=RunKind.TRAINING, status=RunStatus.RUNNING, name="grid-mini: GRPO", ended_at=None
    )
    run.progress = {"phase": "grpo", "done": 212, "total": 400}
    dice = random.Random(3)
    steps = range(1, 213)
    for name, slope in (("reward", 0.6), ("columns/win", 0.5), ("columns/format", 0.3), ("columns/invalid_move", -0.2)):
        values = {step: slope * (1 - 0.99**step) + dice.gauss(0.2, 0.04) for step in steps}
        factories.make_points(session, run, name, values)
    for name in ("entropy", "completions/mean_length", "groups/no_variance", "completions/truncated"):
        factories.make_points(session, run, name, {step: dice.random() / (1 + step / 50) for step in steps})
    factories.make_points(session, run, "heldout/reward", {step: 0.4 + step / 600 for step in range(0, 213, 25)})
    factories.make_rollouts(session, run, factories.random_rows(16, 5), group_size=8, phase=Phase.TRAIN, step=212)
    _checkpoints(session, run, [("untrained", 0), ("sft", 800), *(("grpo", step) for step in range(25, 213, 25))])
    return run


def _checkpoints(session: Session, run: factories.Run, places: list[tuple[str, int]]) -> None:
    """Each with a held-out evaluation; the older ones pruned, one of them kept manually."""
    saved = []
    for stage, step in places:
        mean = 0.1 if stage == "untrained" else 0.42 + 0.26 * (1 - 0.99**step) * (stage == "grpo") - step % 50 / 3000
        reward = {"mean": mean, "low": mean - 0.041, "high": mean + 0.041, "count": 120}
        fields = {"heldout": {"reward": reward}, "heldout_reward": mean, "size_bytes": 1_340_000}
        assert run.policy is not None
        saved.append(factories.make_checkpoint(session, run.policy, run, stage=stage, step=step, **fields))
    max(saved, key=lambda each: each.heldout_reward or 0).is_best = True
    for each in saved[2:-5]:
        each.is_kept = each.step == 50
        each.pruned_at = None if each.is_kept or each.step == 100 else datetime.now(UTC)
    session.flush()


def _steered(session: Session, run: factories.Run, admin: factories.Person) -> factories.Run:
    """Alarms and a changed rate of the run, and a branch that continues from its step 100."""
    fall = {step: 0.987 if step < 150 else 0.987 - (step - 150) * 0.0016 for step in range(1, 213)}
    factories.make_points(session, run, "format", fall)
    for step, name, sentence, evidence in (
        (140, "no_variance", "In 84% of the groups of steps 131 to 140 all episodes earned the same.", {CLEARED: 171}),
        (
            198,
            "format_fall",
            "91.2% of the turns of steps 189 to 198 could be parsed; it was 98.7% in steps 80 to 89.",
            {},
        ),
    ):
        told = {"curve": "format", "value": 0.912, "limit": 0.937, "onset": 89, **evidence}
        session.add(
            Alarm(run_id=run.id, name=name, step=step, sentence=sentence, action=AlarmAction.NOTE, evidence=told)
        )
    session.add(
        SettingChange(run_id=run.id, name="grpo.learning_rate", before=5e-4, after=2.5e-4, step=151, asked_by=admin.id)
    )
    session.add(SettingChange(run_id=run.id, name="heldout.every", before=20, after=10, asked_by=admin.id))
    branch = factories.make_run(
        session,
        run.version,
        run.policy,
        kind=RunKind.TRAINING,
        status=RunStatus.RUNNING,
        name=f"{run.name}, from step 100",
    )
    branch.source_run_id, branch.branch_step, branch.ended_at = run.id, 100, None
    branch.progress = {"phase": "grpo", "done": 160, "total": 400}
    dice = random.Random(4)
    for name, slope in (("reward", 0.7), ("columns/win", 0.6)):
        values = {step: slope * (1 - 0.985**step) + dice.gauss(0.2, 0.03) for step in range(101, 161)}
        factories.make_points(session, branch, name, values)
    _checkpoints(session, branch, [("grpo", step) for step in (125, 150)])
    return branch


def _preflight(session: Session, version: EnvironmentVersion) -> Preflight:
    """Half done."""
    configuration = PRESETS["quick"].configuration
    tasks = [TaskSuccess(level, level < 1, 4, level > 0) for level in (0, 1, 2)]
    found = [*findings_at_once(session, version, configuration), success_finding(tasks, configuration, "win >= 1")]
    preflight = Preflight(
        version_id=version.id,
        configuration=configuration.resolved(),
        status=PreflightStatus.RUNNING,
        findings=[finding.model_dump(mode="json") for finding in found],
        progress={"phase": "the policy before training", "done": 96, "total": 128},
    )
    session.add(preflight)
    session.flush()
    return preflight


def _flags(
    session: Session, training: factories.Run, evaluation: factories.Run, rollouts: list[factories.Rollout]
) -> list[factories.Flag]:
    told = rollouts[1]
    reply = "I will take the centre. " * 6 + "<move>4</move>"
    told.messages = [
        {"role": "system", "content": "You play tic-tac-toe as X. Answer with <move>cell</move>, cells are 0 to 8."},
        {"role": "user", "content": " X | O |  \n---+---+---\n   |   |  \n---+---+---\n   |   | O\nYour move?"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "Cell 4 is taken. <script>alert('no')</script> Try again."},
        {"role": "assistant", "content": "<move>0</move>"},
    ]
    told.steps = [
        factories.make_step(
            reply, {"win": 0.0, "format": 1.0, "invalid_move": 1.0}, done=False, note="Cell 4 is taken."
        ),
        factories.make_step("<move>0</move>", {"win": 1.0, "format": 1.0, "invalid_move": 0.0}),
    ]
    how = {
        "title": "Repeated text",
        "formula": "share of four-word sequences that occurred before > 0.3",
        "source": "starting point",
        "thresholds": {"share": 0.3},
    }
    spans = {"spans": [{"turn": 0, "start": 24, "end": 144}], "excerpt": "I will take the centre.", **how}
    first = factories.make_flag(
        session,
        evaluation,
        told,
        evidence=spans,
        sentence="Turn 1 repeats itself: 83% of its four-word sequences occurred before (zlib ratio 0.21).",
    )
    factories.make_flag(
        session,
        evaluation,
        told,
        detector="early_exit",
        severity=Severity.NOTE,
        sentence="Ended after 2 turns by a reply that cannot be read.",
    )
    series = {
        "series": {"reward": [0.2, 0.22, 0.21, 0.24, 0.3, 0.5, 0.7, 0.72]},
        "window": [180, 212],
        "rollouts": [str(row.id) for row in rollouts[:3]],
    }
    second = factories.make_flag(
        session,
        evaluation,
        None,
        detector="reward_jump",
        severity=Severity.ALERT,
        evidence=series,
        sentence="The mean reward jumped from 0.214 to 0.721 between steps 180 and 212.",
        training_step=212,
    )
    factories.make_flag(
        session,
        training,
        None,
        detector="variance_gone",
        sentence="In 64% of the groups of steps 190 to 212 all rollouts earned the same; mostly all good.",
        training_step=212,
    )
    return [first, second]
