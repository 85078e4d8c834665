"""Made-up rows of the recipes: a finished pre-flight with advice, a run of each recipe, games between two policies.

They have the curves and summaries that the recipes write, so that their pages can be viewed without any training.
"""

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.preflight.findings import ok
from backend.domain.training.preflight.measured import TaskSuccess, gradient_finding, success_finding
from backend.domain.training.presets import PRESETS
from backend.domain.training.self_play import League, LeagueMember
from backend.domain.vocabulary import Phase, PolicyKind, PreflightStatus, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.training.preflight import findings_at_once
from backend.training.tables import Preflight
from tests import factories

LAST = 60
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "distillation": {"distillation": {"teacher": "base", "base": "large-instruct"}},
    "dpo": {"model": {"source": "base", "base": "small-instruct"}},
    "rejection_sampling": {"model": {"source": "base", "base": "small-instruct"}},
    "ahead": {"recipe": "grpo", "grpo": {"staleness": 1}},
    "self_play": {"recipe": "grpo", "self_play": {"every": 10}},
}
CURVES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "distillation": {"reward": (0.2, 0.9), "teacher_kl": (1.4, 0.2), "entropy": (0.9, 0.3)},
    "dpo": {
        "loss": (0.69, 0.35),
        "pairs/accuracy": (0.5, 0.9),
        "pairs/chosen": (0.0, 0.6),
        "pairs/rejected": (0.0, -0.9),
        "pairs/margin": (0.0, 1.5),
    },
    "rejection_sampling": {"reward": (0.3, 0.8)},
    "ahead": {
        "reward": (0.3, 0.8),
        "staleness": (1, 1),
        "ahead/overlap": (0.7, 0.75),
        "ahead/seconds": (1.1, 1.0),
        "ahead/tokens_per_second": (1900, 2100),
        "tokens_per_second": (1200, 1400),
        "ratio/mean": (1.0, 1.0),
        "ratio/max": (1.2, 1.6),
        "ratio/truncated": (0.0, 0.004),
    },
    "self_play": {"reward": (0.6, 0.7), "entropy": (0.9, 0.4)},
}
"""By recipe and curve: the first value and the last one."""


def version_of(session: Session, name: str) -> EnvironmentVersion:
    environment = session.scalars(select(Environment).where(Environment.name == name)).one()
    own = select(EnvironmentVersion).where(EnvironmentVersion.environment_id == environment.id)
    version = session.scalars(own.order_by(EnvironmentVersion.number)).first()
    assert version is not None
    version.environment = environment
    return version


def make_recipe_rows(session: Session) -> dict[str, str]:
    """Names for paths, such as `{dpo}`. The built-in environments must be there."""
    board, duel = version_of(session, "tictactoe"), version_of(session, "tictactoe_duel")
    names = {recipe: str(_run(session, recipe, duel if recipe == "self_play" else board).id) for recipe in RECIPES}
    games, game = _match(session, duel)
    return names | {"advised": str(make_advised(session, board).id), "games": str(games.id), "game": str(game.id)}


def make_advised(session: Session, version: EnvironmentVersion) -> Preflight:
    """A finished pre-flight of GRPO alone, for a policy that hardly ever succeeds."""
    configuration = PRESETS["quick"].configuration.model_copy(update={"recipe": Recipe.GRPO})
    tasks = [TaskSuccess(index % 3, int(index == 0), 8, index > 9) for index in range(32)]
    findings = [
        *findings_at_once(session, version, configuration),
        ok("model", "The model has 0.11 million weights."),
        ok("script", "The scripted policy succeeds in 61% of 64 episodes.", share=0.61, script="teacher"),
        success_finding(tasks, configuration, "win >= 1", parsed=0.12),
        gradient_finding(tasks, configuration),
    ]
    ended = datetime.now(UTC) - timedelta(minutes=4)
    preflight = Preflight(
        version_id=version.id,
        configuration=configuration.resolved(),
        status=PreflightStatus.COMPLETED,
        findings=[finding.model_dump(mode="json") for finding in findings],
        progress={},
        ended_at=ended,
    )
    session.add(preflight)
    session.flush()
    return preflight


def _run(session: Session, recipe: str, version: EnvironmentVersion) -> factories.Run:
    """A run in its last step, with its curves, rollouts and checkpoints."""
    chosen: dict[str, Any] = {"recipe": recipe, **RECIPES[recipe]}
    policy = factories.make_policy(session, f"{recipe.replace('_', '-')}-1", kind=PolicyKind.LOCAL)
    run = factories.make_run(
        session,
        version,
        policy,
        kind=RunKind.TRAINING,
        status=RunStatus.RUNNING,
        ended_at=None,
        name=f"{policy.name}: {version.environment.name}",
        configuration=TrainingConfiguration.model_validate(chosen).resolved(),
        progress={"phase": recipe if recipe in {"dpo", "distillation"} else "grpo", "done": LAST, "total": LAST},
    )
    dice = random.Random(recipe)
    for name, (first, last) in CURVES[recipe].items():
        noise = abs(last - first) / 20
        values = {step: last + (first - last) * 0.95**step + dice.gauss(0, noise) for step in range(1, LAST + 1)}
        factories.make_points(session, run, name, values)
    factories.make_points(session, run, "heldout/reward", {step: 0.4 + step / 200 for step in range(0, LAST + 1, 20)})
    if recipe != "dpo":
        metrics = {"teacher_kl": 0.21} if recipe == "distillation" else {"rejection_kept": 1.0}
        metrics = {"policy_version": 59.0} if recipe == "ahead" else metrics
        rows = factories.random_rows(8, 5)
        factories.make_rollouts(session, run, rows, group_size=4, phase=Phase.TRAIN, step=LAST, metrics=metrics)
    if recipe == "rejection_sampling":
        run.summary = {"rounds": [_round(number) for number in (1, 2, 3)]}
        for name in ("kept", "solved"):
            factories.make_points(session, run, f"rounds/{name}", {number: 0.2 * number for number in (1, 2, 3)})
    if recipe == "self_play":
        _league(session, run)
    for step in (20, 40, LAST):
        mean = 0.4 + step / 200
        held = {"heldout": {"reward": {"mean": mean, "low": mean - 0.04, "high": mean + 0.04, "count": 120}}}
        stage = {"ahead": "grpo", "self_play": "grpo", "rejection_sampling": "rejection"}.get(recipe, recipe)
        factories.make_checkpoint(session, policy, run, stage=stage, step=step, heldout_reward=mean, **held)
    return run


def _round(number: int) -> dict[str, float]:
    kept, reward = 150 * number, 0.4 + 0.1 * number
    return {
        "round": number,
        "sampled": 800,
        "kept": kept,
        "solved": kept // 2,
        "tasks": 200,
        "reward": reward,
        "heldout": reward + 0.02,
        "success": 0.2 * number,
    }


def _league(session: Session, run: factories.Run) -> None:
    """Ratings of past checkpoints, which join every ten steps."""
    league, chance = League([LeagueMember("grpo 0")]), random.Random(7)
    for step in range(1, LAST + 1):
        drawn = [league.draw(chance) for _ in range(8)]
        league.record([(member.name, float(chance.random() < 0.6)) for member in drawn])
        for name, value in league.figures().items():
            factories.make_points(session, run, name, {step: value})
        if step % 10 == 0:
            league.join(f"grpo {step}")


def _match(session: Session, version: EnvironmentVersion) -> tuple[factories.Run, factories.Rollout]:
    """An evaluation of two policies against each other, and one of its games."""
    policy = factories.make_policy(session, "duelist", kind=PolicyKind.LOCAL)
    opponent = {"policy_id": str(policy.id), "name": "duelist at grpo 20"}
    plan = {"split": "heldout", "tasks": 4, "first_task": 0, "group_size": 2, "opponent": opponent}
    run = factories.make_run(session, version, policy, name="duelist against duelist at grpo 20", configuration=plan)
    moves = [
        {"role": "user", "content": "You are O. X plays 5."},
        {"role": "assistant", "content": "<move>1</move>"},
        {"role": "user", "content": "X plays 3."},
        {"role": "assistant", "content": "<move>7</move>"},
    ]
    replies = [message["content"] for message in moves if message["role"] == "assistant"]
    other = {
        "seat": "o",
        "policy": opponent["name"],
        "columns": {"win": 0.0, "format": 1.0},
        "reward": 0.2,
        "stop_reason": "done",
        "tokens_in": 80,
        "tokens_out": 12,
        "cost": None,
        "tokens": None,
        "messages": moves,
        "steps": [{"reply": reply, "rewards": {"win": 0.0}} for reply in replies],
    }
    seats = {"seat": "x", "others": [other], "order": ["x", "o", "x", "o", "x"], "score": 1.0}
    won = [[1.0, 1.0, 0.0]] * 6
    metrics = {"match_score": 1.0}
    rollouts = factories.make_rollouts(session, run, won, group_size=2, seat="x", seats=seats, metrics=metrics)
    return run, rollouts[0]
