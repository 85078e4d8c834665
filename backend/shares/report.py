"""Documents of runs, comparisons, environments and leaderboards: parts of the pages in one file that opens offline."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.only_rows import only_rows
from backend.domain.environments.audit_coverage import audit_coverage
from backend.domain.projects.access import ProjectAccess
from backend.domain.shares import ShareKind
from backend.domain.vocabulary import Phase, Role, RolloutStatus, RunKind
from backend.environments.queries import newest_certificate
from backend.environments.views import with_rollout_views
from backend.graders.queries import graded_runs_of, grades_of_rollout
from backend.operations.schemas import Download
from backend.results.comparison_page import ComparisonChoice, comparison_page
from backend.results.leaderboard import MIN_COVERAGE, get_leaderboard
from backend.results.match_table import matches_on
from backend.results.rewards import FigureScope
from backend.results.run_figures import FiguresRequest, RunFigures
from backend.results.scores import best_step
from backend.review.safeguards import Safeguards, safeguards_of
from backend.rollouts import queries as rollout_queries
from backend.rollouts.tables import Rollout
from backend.runs.charts import Window, columnar_points
from backend.runs.overview import configuration_rows, run_overview
from backend.runs.queries import get_run
from backend.runs.tables import Run
from backend.shares.schemas import SharedItem
from backend.shares.subjects import SharedSubject, environment_of, find_subject
from backend.web import svg
from backend.web.identity import Actor
from backend.web.standalone import render_part, style_sheet
from backend.web.templating import templates
from backend.web.transcripts import Entry, excerpt, transcript_of

MAX_BYTES = 4_000_000
"""A longer document omits its conversations."""
MAX_VIEWS = 300_000
"""Characters of the views in one conversation."""
PARTS = "shares/parts.html"
CHART_SIZE = 320, 130
_VISITOR = Actor(uuid.UUID(int=0), Role.VIEWER, name="Visitor", access=ProjectAccess(Role.VIEWER))
"""Decides what templates offer: nothing that changes anything."""
_PAGE: Mapping[str, object] = {"actor": _VISITOR, "csrf_token": "", "here": "", "path": "", "docs_url": ""}


@dataclass(frozen=True, slots=True)
class ReportSection:
    title: str
    html: Markup
    has_conversations: bool = False


def render_document(session: Session, subject: SharedSubject, note: str) -> str:
    """Return a complete HTML document. `note`: who made it, and until when it can be read.

    Within, only the rows of the subject can be read.
    """
    safeguards = {run_id: safeguards_of(session, run_id) for run_id in dict.fromkeys(subject.run_ids)}
    with only_rows(session, subject.rows):
        sections = list(_sections(session, subject, safeguards))
    if sum(len(section.html) for section in sections) > MAX_BYTES:
        sections = [section for section in sections if not section.has_conversations]
        note += " The conversations are too long for a report and are not included."
    style = style_sheet()
    context = {"subject": subject, "sections": sections, "note": note, "style": style, "made_at": datetime.now(UTC)}
    return templates().get_template("shares/document.html").render(context)


def _sections(
    session: Session, subject: SharedSubject, safeguards: Mapping[uuid.UUID, Safeguards]
) -> Iterator[ReportSection]:
    match subject.item.kind:
        case ShareKind.RUN:
            yield from _run_sections(session, get_run(session, subject.run_ids[0]))
            yield from _grader_sections(session, subject.run_ids)
        case ShareKind.COMPARISON:
            yield _compared_runs(session, subject)
            yield from _comparison(session, ComparisonChoice(run=subject.item.item), "")
            yield from _grader_sections(session, subject.run_ids)
        case ShareKind.ENVIRONMENT:
            yield _environment(session, subject)
        case ShareKind.LEADERBOARD:
            yield _leaderboard(session, subject)
    for report in safeguards.values():
        title = "Safeguards" if len(safeguards) == 1 else f"Safeguards of {report.run}"
        yield ReportSection(title, _part("review/safeguards.html", "safeguards", report=report))
    if subject.item.kind is ShareKind.RUN:
        run = get_run(session, subject.run_ids[0])
        yield ReportSection("Configuration", _part(PARTS, "configuration", run=run, rows=configuration_rows(run)))


def _run_sections(session: Session, run: Run) -> Iterator[ReportSection]:
    overview: dict[str, Any] = run_overview(session, run.id, FiguresRequest(), with_charts=True)
    yield ReportSection("Run", _part(PARTS, "run", run=run, head=overview["head"]))
    yield ReportSection("Outcome", _part("runs/overview.html", "run_outcome", **overview))
    steps = _compared_steps(session, run)
    if steps:
        references = [f"{run.id}@{step}" for step in steps]
        title = f"Improvement from step {steps[0]} to step {steps[1]}"
        yield from _comparison(session, ComparisonChoice(run=references), title)
    charts = list(_plots(session, run, overview["charts"]))
    if charts:
        yield ReportSection("Curves", _part(PARTS, "curves", charts=charts))
    yield ReportSection("Figures", _part("runs/overview.html", "run_figures", **overview))
    if run.kind is RunKind.TRAINING:
        yield ReportSection("Checkpoints", _part("runs/overview.html", "run_checkpoints", **overview))
    if not steps:
        figures: RunFigures = overview["figures"]
        yield from _extremes(session, run, figures.scope)


def _compared_steps(session: Session, run: Run) -> tuple[int, int] | None:
    """Return the first held-out evaluation of a training run and that of its best checkpoint, else the last one."""
    if run.kind is not RunKind.TRAINING:
        return None
    steps = select(func.min(Rollout.training_step), func.max(Rollout.training_step))
    first, last = session.execute(steps.where(Rollout.run_id == run.id, Rollout.phase == Phase.HELDOUT)).one()
    after = best_step(session, run) or last
    return (first, after) if first is not None and after is not None and first != after else None


def _compared_runs(session: Session, subject: SharedSubject) -> ReportSection:
    runs = [get_run(session, run_id) for run_id in dict.fromkeys(subject.run_ids)]
    return ReportSection("Runs", _part(PARTS, "compared", runs=runs))


def _comparison(session: Session, choice: ComparisonChoice, title: str) -> Iterator[ReportSection]:
    found = comparison_page(session, choice, excerpt)
    for play in found.played:
        play["entries"] = _within_budget(play["entries"])
    context = {name: getattr(found, name) for name in found.__dataclass_fields__}
    played = context.pop("played")
    html = _part("results/compare.html", "comparison", **context, played=())
    yield ReportSection(title or "Difference", html)
    if found.open and found.pairing:
        sides = [(found.pairing.before.side, played[0]), (found.pairing.after.side, played[1])]
        grades = [list(grades_of_rollout(session, play["rollout"].id)) for play in played]
        html = _part(PARTS, "conversations", sides=sides, open=found.open, parting=found.parting, grades=grades)
        yield ReportSection("Conversations", html, has_conversations=True)


def _extremes(session: Session, run: Run, scope: FigureScope) -> Iterator[ReportSection]:
    """Return the conversations with the lowest and the highest reward."""
    completed = select(Rollout.id).where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
    for column, value in ((Rollout.phase, scope.phase), (Rollout.training_step, scope.step)):
        if value is not None:
            completed = completed.where(column == value)
    ends = (("Lowest reward", Rollout.reward.asc()), ("Highest reward", Rollout.reward.desc()))
    shown: list[tuple[str, dict[str, Any]]] = []
    for title, order in ends:
        rollout_id = session.scalar(completed.order_by(order, Rollout.seq).limit(1))
        if rollout_id and rollout_id not in [play["rollout"].id for _, play in shown]:
            rollout = rollout_queries.get_rollout(session, rollout_id)
            weights = rollout_queries.weights_of(rollout)
            entries = transcript_of(rollout.messages, rollout.steps, list(weights), weights=list(weights.values()))
            entries = with_rollout_views(session, rollout, excerpt(entries), is_end_shown=False)
            columns = rollout_queries.columns_of(rollout.run, rollout)
            shown.append((title, {"rollout": rollout, "entries": _within_budget(entries), "columns": columns}))
    if shown:
        grades = [list(grades_of_rollout(session, play["rollout"].id)) for _, play in shown]
        html = _part(PARTS, "conversations", sides=shown, open=None, parting=None, grades=grades)
        yield ReportSection("Conversations", html, has_conversations=True)


def _within_budget(entries: Iterable[Entry]) -> list[Entry]:
    """Show the views of a conversation until they are too many for a report; the text follows."""
    shown, left = [], MAX_VIEWS
    for entry in entries:
        left -= sum(len(str(view.content)) for view in entry.views)
        shown.append(entry if left >= 0 else replace(entry, views=()))
    return shown


def _grader_sections(session: Session, run_ids: Sequence[uuid.UUID]) -> Iterator[ReportSection]:
    for run_id in dict.fromkeys(run_ids):
        run = get_run(session, run_id)
        if graded := graded_runs_of(session, run):
            title = "Graders" if len(run_ids) == 1 else f"Graders of {run.name}"
            yield ReportSection(title, _part(PARTS, "graders", run=run, works=graded))


def _plots(session: Session, run: Run, charts: Sequence[Any]) -> Iterator[tuple[str, str, svg.Plot]]:
    for chart in charts:
        points: Any = columnar_points(session, run, chart.series, Window(), with_source=True)
        curves = {f"{number}": each["values"] for number, each in enumerate(points["series"])}
        if len(points["x"]) > 1:
            drawing = svg.plot(points["x"], curves, *CHART_SIZE, ends=(chart.low, chart.high))
            labels = [each["label"] for each in points["series"]]
            named = [replace(curve, label=label) for curve, label in zip(drawing.curves, labels, strict=True)]
            yield chart.title, chart.unit, replace(drawing, curves=[each for each in named if each.pieces])


def _environment(session: Session, subject: SharedSubject) -> ReportSection:
    environment, version = environment_of(session, subject)
    certificate = newest_certificate(session, version)
    context = {
        "environment": environment,
        "version": version,
        "manifest": version.typed_manifest,
        "readme": version.files.get("README.md", ""),
        "certificate": certificate,
        "coverage": audit_coverage(certificate.results) if certificate else None,
        "open_check": None,
        "failed_check": None,
        "is_older": False,
        "newest": version.number,
        "policies": (),
    }
    return ReportSection("Environment", _part(PARTS, "environment", **context))


def _leaderboard(session: Session, subject: SharedSubject) -> ReportSection:
    board = get_leaderboard(session, subject.item.item[0], subject.item.version, subject.item.exam)
    ends = [end for row in board.ranked if row.reward for end in (row.reward.low, row.reward.high)]
    context = {"board": board, "low": min(ends, default=0.0), "high": max(ends, default=1.0), "least": MIN_COVERAGE}
    context |= matches_on(session, board)
    return ReportSection("Leaderboard", _part("results/leaderboard.html", "board", **context))


def _part(template: str, block: str, **context: object) -> Markup:
    return render_part(template, block, {**_PAGE, **context})


def report_file(session: Session, actor: Actor, item: SharedItem) -> Download:
    """Return a report as a file. Raises NotFound if the person does not see the item."""
    subject = find_subject(session, item)
    document = render_document(session, subject, f"Exported by {actor.name} on {datetime.now(UTC):%-d %B %Y}.")
    end = subject.item.item[-1].partition("@")[0][-8:]
    return Download(f"proctor-{item.kind}-{end}.html", "text/html; charset=utf-8", lambda _: iter([document.encode()]))
