"""The job `judging.follow`: verdicts on a training run change its best checkpoint."""

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.review.judged_curves import choose_best
from workers.tasks.registry import JobContext


def run(context: JobContext) -> None:
    with transaction() as session:
        choose_best(session, context.need_run())
        announce(session, run_topic(context.need_run()))
