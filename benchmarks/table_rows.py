"""Runs with many rollouts, made up and written by COPY: what a table is measured on."""

import json
import random
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import content_hash
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id, stable_id
from backend.domain.text import json_text
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus, Split
from backend.environments.tables import Environment, EnvironmentVersion
from backend.graders.tables import Grader
from backend.policies.tables import Policy
from backend.rollouts.tables import Task
from backend.runs.tables import Run
from workers.storage.rollouts import COLUMNS

GROUP_SIZE = 4
WEIGHTS = {"win": 1.0, "format": 0.2, "invalid_move": -0.1}
DETECTORS = ("repeated_text", "early_exit", "length_collapse")
RARE, COMMON = "zebrafish", "your move"
"""Texts that few rollouts hold, and that all of them hold."""
CONVERSATIONS = 4000
"""Different ones; each is used many times over."""
_START = datetime(2026, 11, 1, tzinfo=UTC)


def make_surroundings(tasks: int) -> tuple[uuid.UUID, uuid.UUID, uuid.UUID]:
    """Environment version, policy and judge that all runs share."""
    files = {"openenv.yaml": "name: table\n"}
    with transaction() as session:
        environment = Environment(name="table", description="Rows for a measurement.")
        policy = Policy(name="grid-mini", kind=PolicyKind.SCRIPTED, configuration={"script": "random"})
        session.add_all([environment, policy])
        session.flush()
        version = EnvironmentVersion(
            environment_id=environment.id,
            number=1,
            files=files,
            content_hash=content_hash(files),
            manifest=_manifest().model_dump(mode="json"),
        )
        judge = Grader(name="strict", kind=GraderKind.JUDGE, policy_id=policy.id, settings={})
        session.add_all([version, judge])
        session.flush()
        session.add_all(
            Task(
                id=_task(version.id, index),
                version_id=version.id,
                split=Split.HELDOUT,
                index=index,
                level=index % 6,
                seed=index,
            )
            for index in range(tasks)
        )
        return version.id, policy.id, judge.id


def _manifest() -> Manifest:
    """What a verdict reads of a version: its columns, and what chance may get."""
    block = {
        "agent": {"action": {"format": "tag", "tag": "move", "field": "cell", "type": "integer"}},
        "rewards": dict(WEIGHTS),
        "checks": {"floor_maximum": 0.2},
    }
    return Manifest.model_validate({"name": "table", "proctor": block})


def make_run(name: str, version_id: uuid.UUID, policy_id: uuid.UUID, judge_id: uuid.UUID, rollouts: int) -> uuid.UUID:
    """A finished evaluation with flags, verdicts and grades."""
    run = Run(
        kind=RunKind.EVALUATION,
        status=RunStatus.COMPLETED,
        name=name,
        version_id=version_id,
        policy_id=policy_id,
        columns=list(WEIGHTS),
        weights=list(WEIGHTS.values()),
        next_seq=rollouts + 1,
        started_at=_START,
        ended_at=_START + timedelta(hours=1),
    )
    with transaction() as session:
        session.add(run)
        session.flush()
        groups = [stable_id("group", run.id, "evaluation", None, ordinal) for ordinal in range(rollouts // GROUP_SIZE)]
        rows = ((id, run.id, _task(version_id, n), "evaluation", None, n) for n, id in enumerate(groups))
        _copy(session, "groups (id, run_id, task_id, phase, training_step, ordinal)", rows)
    dice = random.Random(name)
    said = [conversation(dice) for _ in range(CONVERSATIONS)]
    for first in range(0, rollouts, 5000):
        ids = range(first, min(first + 5000, rollouts))
        with transaction() as session:
            made = [_rollout(dice, run.id, groups[n // GROUP_SIZE], n, said) for n in ids]
            _copy(session, f"rollouts ({', '.join(COLUMNS)})", made)
            _judge(session, dice, run.id, judge_id, [row[0] for row in made])
    return run.id


def conversation(dice: random.Random) -> tuple[str, str, str]:
    """Messages, steps and last words of about 2 KB in all, of words as common as words are."""

    def words(count: int) -> str:
        return " ".join(f"w{int(dice.paretovariate(0.7)) % 20000}" for _ in range(count))

    replies = [f"{words(25)} <move>{dice.randrange(9)}</move>" for _ in range(3)]
    boards = [f"{words(15)} {COMMON}?" for _ in range(3)]
    messages = [{"role": "system", "content": "You play tic-tac-toe as X. Answer with <move>cell</move>. " + words(20)}]
    for board, reply in zip(boards, replies, strict=True):
        messages += [{"role": "user", "content": board}, {"role": "assistant", "content": reply}]
    if dice.random() < 0.001:
        messages[-1]["content"] += f" {RARE}"
    steps = [
        {
            "reply": reply,
            "action": {"cell": 4},
            "observation": {"board": board[:40]},
            "text": board,
            "rewards": {"win": 0.0},
            "done": False,
        }
        for board, reply in zip(boards, replies, strict=True)
    ]
    return json_text(messages), json_text(steps), replies[-1][-300:]


def _rollout(dice: random.Random, run_id: uuid.UUID, group: uuid.UUID, number: int, said: Sequence[Any]) -> list[Any]:
    messages, steps, excerpt = said[dice.randrange(len(said))]
    failed = dice.random() < 0.03
    values = [dice.choice([0.0, 0.5, 1.0]), round(dice.uniform(0.6, 1.0), 2), float(dice.choice([0, 0, 1, 2]))]
    reward = None if failed else sum(weight * value for weight, value in zip(WEIGHTS.values(), values, strict=True))
    started = _START + timedelta(milliseconds=10 * number)
    member = number % GROUP_SIZE
    return [
        stable_id("rollout", group, member), run_id, group, member, number + 1, "evaluation", None,
        (number // GROUP_SIZE) % 6, "failed" if failed else "completed",
        None if failed else dice.choice(["done", "done", "done", "max_turns", "unparsable"]),
        "environment" if failed else None, "step: the board is on fire" if failed else None, 3 if failed else 1,
        reward, None if failed else values, json.dumps({"guesses": dice.randrange(50)}), '{"board": "........."}',
        steps, messages, excerpt, dice.randrange(1, 9), dice.randrange(100, 900), int(dice.lognormvariate(4, 1)),
        dice.random() < 0.02, None, None if failed else dice.gauss(0, 1), dice.random(), dice.random() / 10,
        dice.random() / 100, dice.random() / 1000, None, started, started + timedelta(seconds=1),
    ]  # fmt: skip


def _judge(session: Session, dice: random.Random, run_id: uuid.UUID, judge_id: uuid.UUID, ids: list[uuid.UUID]) -> None:
    flagged = [(id, dice.choice(DETECTORS)) for id in ids if dice.random() < 0.05]
    evidence = json.dumps({"spans": [{"turn": 0, "start": 2, "end": 40}], "title": "Repeated text", "share": 0.31})
    flags = (
        (new_id(), run_id, id, detector, str(id), "warning", dice.random(), "The same words occur 12 times.", evidence)
        for id, detector in flagged
    )
    _copy(session, "flags (id, run_id, rollout_id, detector, key, severity, score, sentence, evidence)", flags)
    verdicts = ((new_id(), run_id, id, dice.choice(["hack", "honest"]), "") for id, _ in flagged if dice.random() < 0.1)
    _copy(session, "verdicts (id, run_id, rollout_id, verdict, comment)", verdicts)
    said = json.dumps([{"score": 0.5, "reason": "The answer follows the rules of the game and says why."}] * 2)
    grades = (
        (new_id(), judge_id, run_id, id, "completed", round(dice.random(), 2), said, "", "[]", 0, 300, 40) for id in ids
    )
    _copy(
        session,
        "grades (id, grader_id, run_id, rollout_id, status, score, verdicts, reason, citations, dropped, tokens_in, "
        "tokens_out)",
        grades,
    )


def _task(version_id: uuid.UUID, index: int) -> uuid.UUID:
    return stable_id("task", version_id, Split.HELDOUT, index, index)


def _copy(session: Session, target: str, rows: Iterable[Sequence[Any]]) -> None:
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with driver.cursor() as cursor, cursor.copy(f"COPY {target} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
