"""Which branches of the grader's code do the audit's answers execute? Replayed on a server that records them."""

import asyncio
import random
import time
from itertools import chain, zip_longest

from backend.domain.environments.branches import Branch, described, grader_branches, read_sources
from backend.domain.environments.manifest import PLATFORM_COLUMNS
from backend.domain.errors import RolloutError, SandboxError
from backend.domain.rollouts.rollout import Rollout, columns_over_episode
from backend.domain.statistics import wilson
from workers.environments.checks.base import (
    TOLERANCE,
    Check,
    CheckFinding,
    Cost,
    does_not_apply,
    passed,
    skipped,
    warned,
)
from workers.environments.checks.policies import DEGENERATE, SCRIPTS
from workers.environments.checks.subject import CONCURRENCY, CheckSubject, actions_of, rewards_of
from workers.environments.client import EnvServer
from workers.environments.inside.recorder import NOT_RECORDED

MAX_ANSWERS, FIRST_ANSWERS = 96, 5
SHARE_OF_TIME, SECONDS = 0.02, 0.5
"""After the first answers: share of the time of all checks before, and what is always allowed."""
LEAST = 0.5
LISTED = 100


@Check(
    theme="grader",
    label="The audit reaches the grader's branches",
    sentence="The answers of the audit execute most branches of the grader's code.",
    advice="Read the branches that no answer reached. Remove dead ones, and add fixtures that reach the others.",
    example="""
    # fixtures/negative_number.json reaches the branch for negative answers:
    {"task": {"split": "heldout", "index": 3}, "replies": ["<answer>-7</answer>"], "columns": {"correct": 0.0}}
    """,
    cost=Cost.REPLAYS,
    needs=("steps_and_ends", "rewards_finite"),
)
async def branches_executed(subject: CheckSubject) -> CheckFinding:
    """Replay up to 96 answers on a server that records both outcomes of every decision: right, wrong, without effort.

    The grader is every function named like a reward column, `step` if an episode has one turn, and all that they call
    in the package's own files. Takes about 2% of the checks' time so far. Warns if fewer than half of the branches are
    executed, or if an answer earns another reward while they are recorded.
    """
    if subject.branch_recorder is None:
        return does_not_apply("No server of the package records its branches.")
    files = {path: text for path, text in subject.files.items() if path.endswith(".py")}
    sources = read_sources(files)
    names = {column.name for column in subject.manifest.columns}
    branches = grader_branches(
        [source for source in sources if source.path not in subject.generated],
        names,
        has_one_turn=subject.manifest.proctor.episode.max_turns == 1,
    )
    if not branches:
        return does_not_apply("The package's files hold no grader with a branch.")
    answers = _answers(subject)
    if not answers:
        return skipped("No episode completed.")
    total = sum(len(source.branches) for source in sources)
    try:
        async with subject.branch_recorder() as server:
            record, played, differing = await _record(subject, server, answers[:MAX_ANSWERS], total)
    except SandboxError as error:
        if NOT_RECORDED in str(error):
            return does_not_apply(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        return skipped(f"The branches could not be recorded: {str(error)[:1000]}")
    return _judge(branches, record, files, played, len(answers), differing)


def _answers(subject: CheckSubject) -> list[Rollout]:
    """Return played answers, each once, of all kinds in turn. Programs that may damage their process are omitted."""
    others = [name for name in (*SCRIPTS, *DEGENERATE) if name != "gold"]
    kinds: list[list[Rollout]] = []
    for names in (["gold"], ["fixtures", "judged", "rewritten"], ["equal"], ["variants"], others):
        played = chain.from_iterable(subject.played.get(name, []) for name in names)
        distinct = {
            repr((rollout.task, actions_of(rollout))): rollout
            for rollout in played
            if rollout.is_completed and actions_of(rollout)
        }
        kinds.append(list(distinct.values()))
        random.Random(0).shuffle(kinds[-1])
    return [rollout for each in zip_longest(*kinds) for rollout in each if rollout is not None]


async def _record(
    subject: CheckSubject, server: EnvServer, answers: list[Rollout], total: int
) -> tuple[bytes, int, list[Rollout]]:
    """Replay answers while there is time; return the record, their number and all with another reward."""
    began = time.perf_counter()
    limit = max(SECONDS, SHARE_OF_TIME * (began - subject.began))
    record, played, size = bytes(total), 0, FIRST_ANSWERS
    differing: list[Rollout] = []

    async def replay(answer: Rollout) -> None:
        try:
            _, *responses = await subject.replay(answer.task, actions_of(answer), server)
        except RolloutError:
            differing.append(answer)
            return
        steps = [step for step in answer.steps if step.action is not None and step.note is None]
        rows = rewards_of(answer, responses)
        if answer.seats is None:
            pairs = [
                (row.get(name, 0.0), value)
                for step, row in zip(steps, rows, strict=False)
                for name, value in step.rewards.items()
            ]
        else:  # a step's rewards are those of several actions
            declared = [column for column in subject.manifest.columns if column.name not in PLATFORM_COLUMNS]
            now_by_column = columns_over_episode(declared, rows)
            pairs = [(now, answer.columns.get(name, 0.0)) for name, now in now_by_column.items()]
        if any(abs(now - before) > 4 * subject.noise + TOLERANCE for now, before in pairs):
            differing.append(answer)

    await server.read_branches()  # those of the import
    while size > 0 and played < len(answers) and not subject.should_stop():
        batch = answers[played : played + size]
        await asyncio.gather(*map(replay, batch))
        seen = await server.read_branches()
        if len(seen) != total:
            raise SandboxError(f"the server recorded {len(seen)} branches instead of {total}")
        record, played = bytes(map(max, record, seen)), played + len(batch)
        seconds = time.perf_counter() - began
        size = min(CONCURRENCY, int((limit - seconds) / seconds * played))
    return record, played, differing


def _judge(
    branches: dict[int, Branch], record: bytes, files: dict[str, str], played: int, known: int, differing: list[Rollout]
) -> CheckFinding:
    missed = [branch for number, branch in branches.items() if not record[number]]
    executed, total = len(branches) - len(missed), len(branches)
    evidence = f"{played} of {known} answers execute {executed} of {total} branches of the grader."
    if differing:
        return warned(
            f"The branches were not counted: {len(differing)} of {played} answers earn another reward while they are"
            f" recorded, e.g. on {differing[0].task.key}.",
            differing,
        )
    interval = wilson(executed, total)
    listed = [described(branch, files) for branch in missed[:LISTED]]
    details: dict[str, object] = {
        "executed": executed,
        "total": total,
        "share": executed / total,
        "interval": [interval.low, interval.high],
        "answers": played,
        "functions": sorted({f"{branch.path}: {branch.function}" for branch in branches.values()})[:LISTED],
        "missed": listed,
    }
    if listed:
        evidence += " Not executed: " + ", ".join(f"{each['path']}:{each['line']}" for each in listed[:3])
        evidence += f" and {len(missed) - 3} more." if len(missed) > 3 else "."
    return (passed if executed >= LEAST * total else warned)(evidence, **details)
