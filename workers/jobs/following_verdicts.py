"""The job `judging.follow`: verdicts on a training run move its best checkpoint."""

from backend.db.session import transaction
from backend.events import announce, run_topic
from backend.judging.consequences.curves import choose_best
from workers.jobs.registry import JobContext


def run(context: JobContext) -> None:
    with transaction() as session:
        choose_best(session, context.need_run())
        announce(session, run_topic(context.need_run()))
