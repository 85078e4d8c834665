"""The job `training.run`: takes the run up and lets a process of its own train, which goes on where it was cut."""

from backend.core.session import transaction
from backend.runs.service import begin_run
from backend.runs.tables import Run
from workers.tasks.children import child_error, run_child
from workers.tasks.registry import JobContext
from workers.tasks.training_vitals import Vitals

MODULE = "workers.training.run"
MODULES = {"unsloth": "workers.training.with_unsloth"}
"""Of engines whose training process begins in a way of its own."""
LAUNCHER = "workers.training.ranks.launch"
"""Of runs that train in several processes."""


def run(context: JobContext) -> None:
    """The job's body. The child records how the run ended; a bad end of the child is another attempt, unless it would
    end the same way."""
    run_id = context.need_run()
    with transaction() as session:
        row = session.get_one(Run, run_id)
        if not begin_run(session, row):
            return
        module = module_of(row)
    vitals = Vitals(run_id)
    status = run_child(module, [str(run_id)], run_id=run_id, may_go_on=vitals.may_go_on)
    if status and not vitals.after_bad_end(status):
        raise child_error(module, status, run_id)


def module_of(run: Run) -> str:
    """What the run is started by."""
    if run.configuration.get("hardware", {}).get("processes", 1) > 1:
        return LAUNCHER
    return MODULES.get(str(run.configuration.get("engine")), MODULE)
