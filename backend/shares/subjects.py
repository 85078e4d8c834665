"""The item behind a link or a report, and the rows that it consists of."""

import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.only_rows import SharedRows
from backend.domain.shares import ShareKind
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.environments.queries import get_environment, get_version
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.graders.tables import Grader, GraderRun
from backend.policies.tables import Policy
from backend.projects.tables import Project
from backend.results.baselines import BASELINES
from backend.results.leaderboard import RANKED_KINDS, get_leaderboard
from backend.results.schemas import side_at
from backend.runs.queries import versions_of
from backend.runs.references import find_run
from backend.runs.tables import Run
from backend.shares.schemas import SharedItem

MAX_BASELINES = 40
"""Evaluations of scripted baselines on a version, of which a comparison shows the fitting ones."""


@dataclass(slots=True)
class SharedSubject:
    """An item that was found in a session which is limited to what its person sees."""

    item: SharedItem
    """With ids instead of short names, and with the step and version as they are now."""
    name: str
    project_ids: frozenset[uuid.UUID]
    run_id: uuid.UUID | None = None
    environment_id: uuid.UUID | None = None
    run_ids: list[uuid.UUID] = field(default_factory=list)
    """Runs whose safeguards belong to it."""
    rows: SharedRows = field(default_factory=dict)
    """All that may be read to show it."""


def find_subject(session: Session, item: SharedItem) -> SharedSubject:
    """Find the item. Raises NotFound if it does not exist, or if the session's person does not see it."""
    if item.kind in (ShareKind.ENVIRONMENT, ShareKind.LEADERBOARD):
        return _environment_subject(session, item)
    is_comparison = item.kind is ShareKind.COMPARISON
    if is_comparison == (len(item.item) == 1):
        raise InvalidInput(fields={"item": "Select two to eight runs." if is_comparison else "Select one run."})
    if is_comparison:
        sides = [side_at(session, reference) for reference in item.item]
        runs, references = [side.run for side in sides], [side.reference for side in sides]
    else:
        runs = [find_run(session, item.item[0])]
        references = [str(runs[0].id)]
    projects = list(dict.fromkeys(run.project_id for run in runs))
    restricted = session.scalars(select(Project.id).where(Project.id.in_(projects), Project.is_restricted)).all()
    if len(restricted) > 1:
        raise InvalidInput(fields={"item": "These runs belong to different restricted projects. Share them apart."})
    first = next((run for run in runs if run.project_id in restricted), runs[0])
    environment = first.version.environment.name
    return SharedSubject(
        item.model_copy(update={"item": references, "version": None, "exam": ""}),
        f"Comparison of {len(runs)} runs on {environment}" if is_comparison else first.name,
        frozenset(projects),
        run_id=first.id,
        run_ids=[run.id for run in runs],
        rows=_rows_of(session, runs),
    )


def _environment_subject(session: Session, item: SharedItem) -> SharedSubject:
    if len(item.item) != 1:
        raise InvalidInput(fields={"item": "Select one environment."})
    environment = get_environment(session, item.item[0])
    rows: dict[str, frozenset[uuid.UUID]] = {"environments": frozenset({environment.id})}
    number = item.version
    if item.kind is ShareKind.ENVIRONMENT:
        number, exam = get_version(session, environment, number).number, ""
    else:
        board = get_leaderboard(session, environment.name, number, item.exam)
        number, exam = board.version, board.exam.key if board.exam else ""
        ranked = select(Run.id, Run.policy_id, Run.checkpoint_id)
        ranked = ranked.where(Run.version_id == board.evaluated.id, Run.kind.in_(RANKED_KINDS))
        columns = zip(*session.execute(ranked).all(), strict=True)
        found = dict(zip(("runs", "policies", "checkpoints"), columns, strict=False))
        rows |= {name: frozenset(key for key in keys if key) for name, keys in found.items()}
    return SharedSubject(
        item.model_copy(update={"version": number, "exam": exam}),
        f"{environment.name} v{number}",
        frozenset({environment.project_id}),
        environment_id=environment.id,
        rows=rows,
    )


def _rows_of(session: Session, runs: Iterable[Run]) -> SharedRows:
    """Return the runs with their environments, policies, checkpoints, graders and baselines."""
    rows: defaultdict[str, set[uuid.UUID]] = defaultdict(set)
    versions: set[uuid.UUID] = set()
    for run in runs:
        rows["runs"].add(run.id)
        rows["policies"] |= {run.policy_id} if run.policy_id else set()
        rows["checkpoints"] |= {run.checkpoint_id} if run.checkpoint_id else set()
        for version in versions_of(session, run):
            rows["environments"].add(version.environment_id)
            versions.add(version.id)
    judges = select(Grader.policy_id).join(GraderRun, GraderRun.grader_id == Grader.id)
    rows["policies"] |= set(session.scalars(judges.where(GraderRun.run_id.in_(rows["runs"]))))
    baselines = (
        select(Run.id, Run.policy_id)
        .join(Run.policy)
        .where(
            Run.kind == RunKind.EVALUATION,
            Run.status == RunStatus.COMPLETED,
            Run.version_id.in_(versions),
            Policy.kind == PolicyKind.SCRIPTED,
            Policy.configuration["script"].astext.in_(BASELINES),
        )
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(MAX_BASELINES)
    )
    for run_id, policy_id in session.execute(baselines):
        rows["runs"].add(run_id)
        rows["policies"] |= {policy_id} if policy_id else set()
    return {name: frozenset(ids) for name, ids in rows.items()}


def environment_of(session: Session, subject: SharedSubject) -> tuple[Environment, EnvironmentVersion]:
    environment = get_environment(session, subject.item.item[0])
    return environment, get_version(session, environment, subject.item.version, with_files=True)
