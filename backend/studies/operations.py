"""Operations on studies."""

from sqlalchemy.orm import Session

from backend.domain.studies.study import StudyKind
from backend.domain.vocabulary import Role
from backend.operations.declaration import operation, reference
from backend.runs import references as _references  # noqa: F401  how addresses name runs
from backend.runs.tables import Run
from backend.studies import service
from backend.studies.queries import find_study, get_studied_run
from backend.studies.responses import run_studies, study_responses
from backend.studies.schemas import ListStudies, RunStudies, StartEffort, StartOnset, StudyResponse
from backend.studies.tables import Study
from backend.web.identity import Actor

reference(Study, "Id of a study, or the last characters of it.")(find_study)


@operation("GET /runs/{run}/studies", role=Role.VIEWER, command="study list", tool=True)
def list_studies(session: Session, actor: Actor, run: Run, request: ListStudies) -> RunStudies:
    """List the studies of a run, and the patterns and checkpoints that can be studied."""
    kinds = [request.kind] if request.kind else []
    return run_studies(session, get_studied_run(session, run.id, *kinds), request.kind)


@operation(
    "POST /runs/{run}/studies/onset",
    role=Role.AUTHOR,
    command="study onset",
    status=201,
    tool=True,
    poll="/studies/{id}",
    page="/runs/{run_id}/studies",
    notice="The onset study of {title} was queued. The starting policy plays first, then checkpoints.",
)
def start_onset(session: Session, actor: Actor, run: Run, request: StartOnset) -> StudyResponse:
    """Find the first checkpoint that shows a confirmed pattern more often than the policy that GRPO started from."""
    run = get_studied_run(session, run.id, StudyKind.ONSET)
    return _response(session, service.start_onset(session, actor, run, request))


@operation(
    "POST /runs/{run}/studies/effort",
    role=Role.AUTHOR,
    command="study effort",
    status=201,
    tool=True,
    poll="/studies/{id}",
    page="/runs/{run_id}/studies",
    notice="The effort study of {title} was queued. Both sides play their tasks, then their replies are cut.",
)
def start_effort(session: Session, actor: Actor, run: Run, request: StartEffort) -> StudyResponse:
    """Measure how much of its reasoning a checkpoint needs to earn its reward, compared with the starting policy.

    Cuts the reasoning of successful replies, forces the answer and grades it. Takes a training run, or an evaluation of
    a local checkpoint.
    """
    run = get_studied_run(session, run.id, StudyKind.EFFORT)
    return _response(session, service.start_effort(session, actor, run, request))


@operation("GET /studies/{study}", role=Role.VIEWER, command="study show", tool=True)
def get_study(session: Session, actor: Actor, study: Study) -> StudyResponse:
    """Show a study's progress and result."""
    return _response(session, study)


@operation(
    "POST /studies/{study}/stop",
    role=Role.AUTHOR,
    command="study stop",
    tool=True,
    page="/runs/{run_id}/studies",
    notice="The study was stopped. Its samples are kept.",
)
def stop_study(session: Session, actor: Actor, study: Study) -> StudyResponse:
    """Stop a study and the evaluation that it waits for. Samples are kept."""
    service.stop_study(session, study)
    return _response(session, study)


@operation(
    "POST /studies/{study}/resume",
    role=Role.AUTHOR,
    command="study resume",
    poll="/studies/{id}",
    page="/runs/{run_id}/studies",
    notice="The study continues.",
)
def resume_study(session: Session, actor: Actor, study: Study) -> StudyResponse:
    """Continue a stopped or failed study."""
    service.resume_study(session, study)
    return _response(session, study)


def _response(session: Session, study: Study) -> StudyResponse:
    (response,) = study_responses(session, get_studied_run(session, study.run_id), [study])
    return response
