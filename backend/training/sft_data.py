"""SFT data: rollouts that pass a filter as conversations, for a preview, a download or as demonstrations."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from sqlalchemy import Row, Select, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.rollouts.conversation import to_foreign
from backend.domain.training.examples import DuplicateIndex, estimate_tokens
from backend.domain.vocabulary import RolloutStatus, Split, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.operations.schemas import Download
from backend.rollouts.export import ROWS
from backend.rollouts.formats.huggingface import plain_line, write_sft_folder
from backend.rollouts.formats.streams import Record, outgoing, write_lines
from backend.rollouts.queries import matching
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs import queries as run_queries
from backend.runs.tables import Run
from backend.training.example_sources import NEWEST_VERDICT
from backend.training.schemas import SftFilter, SftFormat, SftPreview
from backend.web.audit import audit
from backend.web.identity import Actor

PREVIEWED = 20_000
"""Conversations that a preview reads."""


def runs_of(session: Session, request: SftFilter) -> list[Run]:
    """The selected runs. Raises NotFound, and InvalidInput if there is none."""
    if not request.run:
        raise InvalidInput(fields={"run": "Choose at least one run."})
    return [run_queries.get_run(session, run_id) for run_id in dict.fromkeys(request.run)]


def preview(session: Session, request: SftFilter) -> SftPreview:
    runs = runs_of(session, request)
    found, seen = SftPreview(), DuplicateIndex()
    if not request.heldout:
        heldout = _candidates(session, runs, request, split=Split.HELDOUT).subquery()
        found.heldout = session.scalars(select(func.count()).select_from(heldout)).one()
    for number, row in enumerate(_rows(session, _candidates(session, runs, request))):
        if number == PREVIEWED:
            found.is_whole = False
            break
        if not seen.is_new(row.messages) and not request.repeats:
            found.repeats += 1
            continue
        found.conversations += 1
        found.tokens += estimate_tokens(row.messages)
        found.tokens_written += row.tokens_out
        if len(found.samples) < 5:
            found.samples.append(_conversation(row))
    found.near_repeats = seen.near
    return found


def download(session: Session, request: SftFilter, kind: SftFormat) -> Download:
    """The conversations as chat JSONL, or as a zipped folder for Hugging Face's `datasets`."""
    names = "; ".join(f"{plain_line(run.name)} ({run.id})" for run in runs_of(session, request))
    conditions = {
        "the best of each group": request.best_of_group,
        f"a reward of at least {request.min_reward or 0:g}": request.min_reward is not None,
        "verdict honest": request.honest_only,
        "without flags": request.without_flags,
        "every reply parsed": request.understood_only,
        f"where {request.where.strip()}": bool(request.where.strip()),
        "held-out tasks included": request.heldout,
    }
    words = plain_line(", ".join(text for text, is_set in conditions.items() if is_set))
    selection = f"Runs: {names}. Filter: {words or 'all completed rollouts'}."

    def content(session: Session) -> Iterator[bytes]:
        rows = map(_conversation, _new_rows(session, runs_of(session, request), request))
        if kind == "jsonl":
            yield from outgoing(write_lines, map(orjson.dumps, rows))
        else:
            yield from outgoing(write_sft_folder, rows, selection)

    if kind == "jsonl":
        return Download("sft.jsonl", "application/x-ndjson", content)
    return Download("sft.zip", "application/zip", content)


def mark_demonstrations(session: Session, actor: Actor, request: SftFilter, *, is_wanted: bool) -> int:
    """Let the SFT warm-up learn from these rollouts, or not. Never marks held-out tasks, even if the filter includes
    them. Returns the number of rollouts that changed."""
    runs = runs_of(session, request)
    ids = [row.id for row in _new_rows(session, runs, request) if row.split is Split.TRAIN]
    changed = 0
    for start in range(0, len(ids), 1000):
        part = ids[start : start + 1000]
        statement = update(Rollout).where(Rollout.id.in_(part), Rollout.is_demonstration != is_wanted)
        changed += session.execute(statement.values(is_demonstration=is_wanted)).rowcount  # type: ignore[attr-defined]
    for run in runs:
        audit(session, actor, "rollouts.demonstrations", "run", run.id, is_wanted=is_wanted, changed=changed)
    return changed


def _new_rows(session: Session, runs: Sequence[Run], request: SftFilter) -> Iterator[Row[Any]]:
    seen = DuplicateIndex()
    for row in _rows(session, _candidates(session, runs, request)):
        if seen.is_new(row.messages) or request.repeats:
            yield row


def _rows(session: Session, candidates: Select[Any]) -> Iterator[Row[Any]]:
    """Conversations with a reply."""
    part = candidates.subquery()
    statement = (
        select(
            Rollout.id,
            Rollout.run_id,
            Rollout.reward,
            Rollout.messages,
            Rollout.tokens_out,
            Task.split,
            Task.index,
            Environment.name.label("environment"),
        )
        .join(part, part.c.id == Rollout.id)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
        .join(Environment, Environment.id == EnvironmentVersion.environment_id)
        .order_by(Rollout.run_id, Rollout.seq)
    )
    for row in session.execute(statement.execution_options(yield_per=ROWS)):
        if any(message.get("role") == "assistant" for message in row.messages):
            yield row


def _candidates(
    session: Session, runs: Sequence[Run], request: SftFilter, split: Split | None = None
) -> Select[tuple[uuid.UUID]]:
    """Ids of the selected rollouts. The best of a group is the best of its members that pass all other conditions."""
    of_runs = [
        (Rollout.run_id == run.id) & Rollout.id.in_(matching(session, run, request.where, for_learning=True))
        if request.where.strip()
        else Rollout.run_id == run.id
        for run in runs
    ]
    rank = func.row_number().over(partition_by=Rollout.group_id, order_by=(Rollout.reward.desc(), Rollout.seq))
    found = (
        select(Rollout.id, rank.label("place"))
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Rollout.status == RolloutStatus.COMPLETED, or_(*of_runs))
    )
    if split is not None or not request.heldout:
        found = found.where(Task.split == (split or Split.TRAIN))
    if request.min_reward is not None:
        found = found.where(Rollout.reward >= request.min_reward - abs(request.min_reward) * 1e-6)
    if request.honest_only:
        found = found.where(NEWEST_VERDICT == Verdict.HONEST)
    else:
        found = found.where(func.coalesce(NEWEST_VERDICT, Verdict.UNSURE).not_in((Verdict.HACK, Verdict.BROKEN_REWARD)))
    if request.without_flags:
        found = found.where(~select(Flag.id).where(Flag.rollout_id == Rollout.id).exists())
    if request.understood_only:
        found = found.where(~func.jsonb_path_exists(Rollout.steps, cast("$[*] ? (@.action == null)", JSONPATH)))
    part = found.subquery()
    chosen = select(part.c.id)
    return chosen.where(part.c.place == 1) if request.best_of_group else chosen


def _conversation(row: Row[Any]) -> Record:
    return {
        "messages": [to_foreign(message) for message in row.messages],
        "environment": row.environment,
        "task": f"{row.split}/{row.index}",
        "reward": row.reward,
        "run": str(row.run_id),
        "rollout": str(row.id),
    }
