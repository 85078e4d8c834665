"""Operations on graders."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.deletions.schemas import DeleteItems
from backend.deletions.service import delete_items
from backend.domain.graders.settings import GraderKind, QuestionSettings, read_settings
from backend.domain.vocabulary import Role
from backend.environments.references import environment_named
from backend.environments.tables import Environment
from backend.errors import Conflict, InvalidInput
from backend.graders import budgets, queries, service
from backend.graders.estimates import estimate_run
from backend.graders.flags import raise_flags
from backend.graders.schemas import (
    BudgetResponse,
    CreateGrader,
    FlagAnswers,
    FlaggedAnswers,
    GradedRunResponse,
    GradeResponse,
    GraderResponse,
    GradingEstimateResponse,
    ListGraders,
    ListGrades,
    RunGrader,
    SetBudget,
    TryGrader,
    TryResponse,
    UpdateGrader,
)
from backend.graders.selection import contrast_groups, nothing_to_grade, rollouts_to_grade, spread_over
from backend.graders.tables import Grade, Grader
from backend.operations.declaration import operation, reference
from backend.operations.ids import parse_id
from backend.review.queries import get_rollout
from backend.rollouts.tables import Rollout
from backend.runs.references import find_run
from backend.runs.tables import Run
from backend.web.identity import Actor
from backend.web.paging import Key, Page, slice_of

reference(Grader, "Name or id of a grader.")(queries.find_grader)


@operation("GET /graders", role=Role.VIEWER, command="grader list", tool=True)
def list_graders(session: Session, actor: Actor, request: ListGraders) -> Page[GraderResponse]:
    """List graders by name."""
    return Page(items=[GraderResponse.of(each) for each in queries.list_graders(session, request.kind)])


@operation(
    "POST /graders",
    role=Role.AUTHOR,
    command="grader create",
    status=201,
    tool=True,
    page="/graders/{id}",
    notice="The grader {name} was created. Try it before you start it on a run.",
)
def create_grader(session: Session, actor: Actor, request: CreateGrader) -> GraderResponse:
    """Create a grader. Judges need the role trainer. Once started on a run, its settings are fixed."""
    grader = service.save_grader(session, actor, request)
    session.refresh(grader, ["created_at"])
    return GraderResponse.of(grader)


@operation("GET /graders/{grader}", role=Role.VIEWER, command="grader show", tool=True)
def get_grader(session: Session, actor: Actor, grader: Grader) -> GraderResponse:
    """Show a grader and its settings."""
    return GraderResponse.of(grader)


@operation(
    "PUT /graders/{grader}",
    role=Role.AUTHOR,
    command="grader update",
    page="/graders/{id}",
    notice="The grader {name} was updated.",
)
def update_grader(session: Session, actor: Actor, grader: Grader, request: UpdateGrader) -> GraderResponse:
    """Replace the settings of a grader that was not started on a run yet."""
    return GraderResponse.of(service.save_grader(session, actor, request, grader))


@operation(
    "DELETE /graders/{grader}",
    role=Role.AUTHOR,
    command="grader delete",
    status=200,
    page="/graders",
    notice="The grader {name} was deleted. Its grades stay with the rollouts.",
    audited=False,
)
def delete_grader(session: Session, actor: Actor, grader: Grader) -> GraderResponse:
    """Delete a grader. Its grades stay with the rollouts, and its name can be used again.

    It can be restored for 30 days.
    """
    if grader.deleted_at is not None:
        raise service.GraderIsDeleted
    deleted = GraderResponse.of(grader)
    delete_items(session, actor, DeleteItems(graders=[str(grader.id)]))
    return deleted


@operation(
    "POST /graders/{grader}/tries",
    role=Role.AUTHOR,
    command="grader try",
    status=202,
    tool=True,
    poll="/graders/{grader_id}/tries/{id}",
    page="/graders/{grader_id}/tries/{id}",
)
def try_out_grader(session: Session, actor: Actor, grader: Grader, request: TryGrader) -> TryResponse:
    """Try a grader on one rollout, or on three rollouts of a run. Nothing is stored as a grade."""
    if request.rollout:
        rollout_id = parse_id(request.rollout.strip().rsplit("/", 1)[-1])  # or the address of its page
        rollout = session.get(Rollout, rollout_id) if rollout_id else None
        if rollout is None:
            raise InvalidInput(fields={"rollout": "There is no such rollout. Copy the address of its page."})
        ids = [rollout.id]
        if grader.kind is GraderKind.CONTRAST:
            raise InvalidInput(fields={"rollout": "A contrast compares several rollouts. Try it on a run."})
    elif request.run:
        run, settings = find_run(session, request.run), read_settings(grader.settings)
        if isinstance(settings, QuestionSettings) and settings.kind is GraderKind.CONTRAST:
            groups = contrast_groups(session, run, settings.each, request.where)
            ids = [*groups[0].high[:1], *groups[0].low[:1]] if groups else []  # one of each side
        else:
            found = rollouts_to_grade(session, run, settings, request.where).order_by(Rollout.seq)
            ids = spread_over(session.scalars(found).all(), service.MAX_TRIED)
        if not ids:
            problem = nothing_to_grade(settings, request.where)
            raise InvalidInput(problem, fields={"where": problem})
    else:
        raise InvalidInput(fields={"rollout": "Enter a rollout, or a run to take rollouts from."})
    return TryResponse.of_try(grader, service.try_grader(session, grader, ids))


@operation("GET /graders/{grader}/tries/{job}", role=Role.AUTHOR, tool=True)
def get_grader_try(session: Session, actor: Actor, grader: Grader, job: uuid.UUID) -> TryResponse:
    """Show the result of a try."""
    return TryResponse.of_try(grader, queries.get_try(session, grader, job))


@operation("GET /graders/{grader}/runs/{run}/estimate", role=Role.VIEWER, command="grader estimate", tool=True)
def estimate_grader(
    session: Session, actor: Actor, grader: Grader, run: Run, request: RunGrader
) -> GradingEstimateResponse:
    """Estimate how many rollouts a grader would grade, and what that costs. Sends no request."""
    return estimate_run(session, run, grader, request.where, request.cluster)


@operation(
    "POST /graders/{grader}/runs/{run}",
    role=Role.AUTHOR,
    command="grader run",
    status=202,
    tool=True,
    poll="/graders/{grader_id}/runs/{run_id}",
    page="/runs/{run_id}/graders",
    notice="{grader} will grade what it has not graded yet.",
)
def run_grader(session: Session, actor: Actor, grader: Grader, run: Run, request: RunGrader) -> GradedRunResponse:
    """Grade the completed rollouts of a run. Existing grades are kept."""
    if request.sample:
        service.continue_sample(session, run, grader)
    else:
        service.run_grader(session, actor, run, grader, request.where, request.cluster)
    return GradedRunResponse.of_work(queries.get_graded_run(session, run, grader))


@operation("GET /graders/{grader}/runs/{run}", role=Role.VIEWER, tool=True)
def get_grader_result(session: Session, actor: Actor, grader: Grader, run: Run) -> GradedRunResponse:
    """Show a grader's progress and result on a run."""
    return GradedRunResponse.of_work(queries.get_graded_run(session, run, grader))


@operation(
    "POST /graders/{grader}/runs/{run}/stop",
    role=Role.AUTHOR,
    command="grader stop",
    page="/runs/{run_id}/graders",
    notice="{grader} stops after the requests in flight. Existing grades stay.",
)
def stop_grader(session: Session, actor: Actor, grader: Grader, run: Run) -> GradedRunResponse:
    """Stop a grader after the requests in flight. Existing grades stay."""
    service.stop_grader(session, run, grader)
    return GradedRunResponse.of_work(queries.get_graded_run(session, run, grader))


@operation(
    "POST /graders/{grader}/runs/{run}/flags",
    role=Role.AUTHOR,
    command="grader flag",
    page="/runs/{run}/graders",
    notice="New flags in the review queue: {flags}.",
)
def flag_answers(session: Session, actor: Actor, grader: Grader, run: Run, request: FlagAnswers) -> FlaggedAnswers:
    """Turn stored answers of a question or monitor into flags, with their quotes as evidence."""
    settings = read_settings(grader.settings)
    if not isinstance(settings, QuestionSettings) or settings.kind is GraderKind.CONTRAST:
        raise Conflict("Only the answers of questions and monitors can be turned into flags.")
    work = queries.find_work(session, run.id, grader.id)
    if work is not None and (work.canaries or {}).get("is_injectable"):
        raise Conflict("This grader follows instructions in the data, so its answers raise no flags.")
    if unknown := [answer for answer in request.answers if answer not in settings.choices]:
        raise InvalidInput(fields={"answers": f"There is no answer {', '.join(unknown)[:100]}."})
    if settings.kind is GraderKind.QUESTION and not (request.answers or settings.flags):
        raise InvalidInput(fields={"answers": f"Choose an answer: {', '.join(settings.choices)}."})
    return FlaggedAnswers(flags=raise_flags(session, run.id, grader, answers=request.answers))


@operation("GET /graders/{grader}/budgets", role=Role.VIEWER, command="grader budgets", tool=True)
def list_grader_budgets(session: Session, actor: Actor, grader: Grader) -> Page[BudgetResponse]:
    """List the environments on whose runs a grader runs automatically, its limits, and what it spent today."""
    return Page(items=[budgets.describe_budget(session, each) for each in budgets.budgets_of(session, grader)])


@operation(
    "POST /graders/{grader}/budgets",
    role=Role.AUTHOR,
    command="grader budget",
    tool=True,
    page="/graders/{grader_id}#budgets",
    notice="{grader} runs automatically on {environment}, within the budget.",
)
def set_grader_budget(session: Session, actor: Actor, grader: Grader, request: SetBudget) -> BudgetResponse:
    """Run a grader automatically on an environment's evaluations and training runs, within limits."""
    place = environment_named(session, request.environment)
    return budgets.describe_budget(session, budgets.set_budget(session, actor, grader, request, place))


@operation(
    "DELETE /graders/{grader}/budgets/{environment}",
    role=Role.AUTHOR,
    command="grader end-budget",
    status=200,
    page="/graders/{grader_id}#budgets",
    notice="{grader} runs on {environment} only on request.",
)
def delete_grader_budget(session: Session, actor: Actor, grader: Grader, environment: Environment) -> BudgetResponse:
    """Stop running a grader automatically on an environment's runs. Its grades stay."""
    budget = budgets.get_budget(session, grader, environment)
    ended = budgets.describe_budget(session, budget)
    session.delete(budget)
    return ended


@operation("GET /runs/{run}/graders", role=Role.VIEWER, command="grader results", tool=True)
def list_grader_results(session: Session, actor: Actor, run: Run) -> Page[GradedRunResponse]:
    """List the graders of a run with progress, means, answers, cost and agreement with people."""
    return Page(items=[GradedRunResponse.of_work(each) for each in queries.graded_runs_of(session, run)])


@operation("GET /graders/{grader}/runs/{run}/grades", role=Role.VIEWER, command="grader grades", tool=True)
def list_grades(session: Session, actor: Actor, grader: Grader, run: Run, request: ListGrades) -> Page[GradeResponse]:
    """List a grader's grades of a run, newest first."""
    statement = select(Grade).where(Grade.run_id == run.id, Grade.grader_id == grader.id)
    grades = slice_of(session, statement, (Key(Grade.id),), after=request.after, limit=request.limit)
    return Page(items=[GradeResponse.of(each) for each in grades.items], next=grades.next)


@operation("GET /rollouts/{rollout_id}/grades", role=Role.VIEWER)
def list_rollout_grades(session: Session, actor: Actor, rollout_id: uuid.UUID) -> Page[GradeResponse]:
    """List the grades of a rollout."""
    rollout = get_rollout(session, rollout_id)
    return Page(items=[GradeResponse.of(each) for each in queries.grades_of_rollout(session, rollout.id)])
