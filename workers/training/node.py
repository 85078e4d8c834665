"""A node other than the first of a group: `python -m workers.training.node` joins each run that node 0 starts."""

import signal
import sys
import time

import structlog

from backend.core.logs import configure_logging
from backend.settings import get_settings
from workers.tasks.children import child_error, run_child
from workers.training.nodes import POLL_SECONDS, answer, read_call

LAUNCHER = "workers.training.launch"

logger = structlog.get_logger(__name__)


def main() -> int:
    """Join runs until the node is stopped. A run that fails here fails or resumes on node 0, which calls again."""
    configure_logging("node")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = get_settings()
    if settings.node_rank == 0:
        raise SystemExit(
            "Node 0 runs a worker instead. Set PROCTOR_NODES, PROCTOR_NODE_RANK and PROCTOR_NODES_ADDRESS."
        )
    joined = ""
    logger.info("waiting for runs", node=settings.node_rank, nodes=settings.nodes, address=settings.nodes_address)
    while True:
        call = read_call(settings)
        if call is None or call.id == joined or call.nodes <= settings.node_rank:
            time.sleep(POLL_SECONDS)
            continue
        joined = call.id
        answer(settings, call)
        logger.info("joins a run", run_id=call.run)

        def is_current(called: str = call.id) -> bool:
            current = read_call(settings)
            return current is not None and current.id == called

        if status := run_child(LAUNCHER, [call.run], run_id=None, may_continue=is_current):
            logger.warning("the run ended here", run_id=call.run, reason=str(child_error(LAUNCHER, status, None)))


if __name__ == "__main__":
    sys.exit(main())
