"""The job `training.run`: takes the run up and lets a process of its own train, which goes on where it was cut."""

from backend.db.models import Run
from backend.db.session import transaction
from backend.evaluations.service import begin_run
from workers.jobs.children import must_run_child
from workers.jobs.registry import JobContext

MODULE = "workers.training.run"


def run(context: JobContext) -> None:
    """The job's body. The child records how the run ended; a bad end of the child is another attempt."""
    run_id = context.need_run()
    with transaction() as session:
        if not begin_run(session, session.get_one(Run, run_id)):
            return
    must_run_child(MODULE, [str(run_id)], run_id=run_id)
