"""SFT data: rollouts that pass a filter as conversations, looked at first, then written or marked as demonstrations."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from sqlalchemy import Row, Select, and_, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.rollouts.conversation import to_foreign
from backend.domain.training.examples import DuplicateIndex, Messages, estimate_tokens
from backend.domain.vocabulary import RolloutStatus, Split, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.operations.schemas import Download
from backend.review.tables import VerdictRecord
from backend.rollouts.export import ROWS
from backend.rollouts.formats.huggingface import plain_line, write_sft_folder
from backend.rollouts.formats.streams import Record, outgoing, write_lines
from backend.rollouts.queries import matching
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs import queries as run_queries
from backend.runs.tables import Run
from backend.training.schemas import SftFilter, SftFormat, SftPreview
from backend.web.audit import audit
from backend.web.identity import Actor

PREVIEWED = 20_000
"""Conversations that a preview looks at."""
SAMPLES = 5
_MARKED_AT_ONCE = 1000
_NOT_UNDERSTOOD = "$[*] ? (@.action == null)"


def runs_of(session: Session, wanted: SftFilter) -> list[Run]:
    """The chosen runs. Raises NotFound."""
    return [run_queries.get_run(session, run_id) for run_id in dict.fromkeys(wanted.run)]


def told(session: Session, wanted: SftFilter) -> str:
    """How the conversations are chosen, as a paragraph of the data's card."""
    names = "; ".join(f"{plain_line(run.name)} ({run.id})" for run in _chosen(session, wanted))
    return f"Runs: {names}. Filter: {plain_line(', '.join(wanted.in_words())) or 'all completed rollouts'}."


def preview(session: Session, wanted: SftFilter) -> SftPreview:
    runs = _chosen(session, wanted)
    found, seen = SftPreview(), DuplicateIndex()
    if not wanted.heldout:
        found.heldout = session.scalars(_counted(_candidates(session, runs, wanted, split=Split.HELDOUT))).one()
    for number, row in enumerate(_rows(session, _candidates(session, runs, wanted))):
        if number == PREVIEWED:
            found.is_whole = False
            break
        if not has_reply(row.messages):
            continue
        if not seen.is_new(row.messages) and not wanted.repeats:
            found.repeats += 1
            continue
        _count(found, row, runs)
    found.near_repeats = seen.near
    return found


def conversations(session: Session, wanted: SftFilter) -> Iterator[Record]:
    """`{"messages": […]}` with where each is from."""
    runs = _chosen(session, wanted)
    for row in _new_rows(session, runs, wanted):
        yield _conversation(row)


def download(session: Session, wanted: SftFilter, kind: SftFormat) -> Download:
    """The conversations as chat JSONL, or as a zipped folder for Hugging Face's `datasets`."""
    selection = told(session, wanted)

    def content(session: Session) -> Iterator[bytes]:
        rows = conversations(session, wanted)
        if kind == "jsonl":
            yield from outgoing(write_lines, map(orjson.dumps, rows))
        else:
            yield from outgoing(write_sft_folder, rows, selection)

    if kind == "jsonl":
        return Download("sft.jsonl", "application/x-ndjson", content)
    return Download("sft.zip", "application/zip", content)


def mark_demonstrations(session: Session, actor: Actor, wanted: SftFilter, *, is_wanted: bool) -> int:
    """May the SFT warm-up learn from these? Held-out tasks are left out whatever the filter says. Returns how many
    changed."""
    runs = _chosen(session, wanted)
    ids = [row.id for row in _new_rows(session, runs, wanted) if row.split is Split.TRAIN]
    changed = 0
    for start in range(0, len(ids), _MARKED_AT_ONCE):
        part = ids[start : start + _MARKED_AT_ONCE]
        statement = update(Rollout).where(Rollout.id.in_(part), Rollout.is_demonstration != is_wanted)
        changed += session.execute(statement.values(is_demonstration=is_wanted)).rowcount  # type: ignore[attr-defined]
    for run in runs:
        audit(session, actor, "rollouts.demonstrations", "run", run.id, is_wanted=is_wanted, changed=changed)
    return changed


def _chosen(session: Session, wanted: SftFilter) -> list[Run]:
    if not wanted.run:
        raise InvalidInput(fields={"run": "Choose at least one run."})
    return runs_of(session, wanted)


def _new_rows(session: Session, runs: Sequence[Run], wanted: SftFilter) -> Iterator[Row[Any]]:
    seen = DuplicateIndex()
    for row in _rows(session, _candidates(session, runs, wanted)):
        if has_reply(row.messages) and (seen.is_new(row.messages) or wanted.repeats):
            yield row


def _rows(session: Session, candidates: Select[Any]) -> Iterator[Row[Any]]:
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
    yield from session.execute(statement.execution_options(yield_per=ROWS))


def _candidates(
    session: Session, runs: Sequence[Run], wanted: SftFilter, split: Split | None = None
) -> Select[tuple[uuid.UUID]]:
    """Ids. With best-of-group the best of those that pass everything else."""
    newest = (
        select(VerdictRecord.verdict)
        .where(VerdictRecord.rollout_id == Rollout.id)
        .where(VerdictRecord.taken_back_at.is_(None), VerdictRecord.verdict != Verdict.UNSURE)
        .order_by(VerdictRecord.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    rank = func.row_number().over(partition_by=Rollout.group_id, order_by=(Rollout.reward.desc(), Rollout.seq))
    found = (
        select(Rollout.id, rank.label("place"))
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Rollout.status == RolloutStatus.COMPLETED, or_(*(_of_run(session, run, wanted.where) for run in runs)))
    )
    if split is not None or not wanted.heldout:
        found = found.where(Task.split == (split or Split.TRAIN))
    if wanted.min_reward is not None:
        found = found.where(Rollout.reward >= wanted.min_reward - abs(wanted.min_reward) * 1e-6)
    if wanted.honest_only:
        found = found.where(newest == Verdict.HONEST)
    else:
        found = found.where(func.coalesce(newest, Verdict.UNSURE).not_in((Verdict.HACK, Verdict.BROKEN_REWARD)))
    if wanted.without_flags:
        found = found.where(~select(Flag.id).where(Flag.rollout_id == Rollout.id).exists())
    if wanted.understood_only:
        found = found.where(~func.jsonb_path_exists(Rollout.steps, cast(_NOT_UNDERSTOOD, JSONPATH)))
    part = found.subquery()
    chosen = select(part.c.id)
    return chosen.where(part.c.place == 1) if wanted.best_of_group else chosen


def _of_run(session: Session, run: Run, where: str) -> Any:
    is_its = Rollout.run_id == run.id
    chosen = Rollout.id.in_(matching(session, run, where, for_learning=True)) if where.strip() else None
    return is_its if chosen is None else and_(is_its, chosen)


def _counted(candidates: Select[Any]) -> Select[Any]:
    return select(func.count()).select_from(candidates.subquery())


def _count(found: SftPreview, row: Row[Any], runs: Sequence[Run]) -> None:
    found.conversations += 1
    found.tokens += estimate_tokens(row.messages)
    found.tokens_written += row.tokens_out
    if len(found.samples) < SAMPLES:
        found.samples.append(_conversation(row))


def _conversation(row: Row[Any]) -> Record:
    return {
        "messages": [to_foreign(message) for message in row.messages],
        "environment": row.environment,
        "task": f"{row.split}/{row.index}",
        "reward": row.reward,
        "run": str(row.run_id),
        "rollout": str(row.id),
    }


def has_reply(messages: Messages) -> bool:
    return any(message.get("role") == "assistant" for message in messages)
