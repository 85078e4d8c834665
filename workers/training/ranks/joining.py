"""A process finds its place among the ranks of its run, and leaves when the run or the leader is over."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import record

from backend.core.embedded import die_with_parent
from workers.training.ranks.ranks import ALONE, PATIENCE, Ranks

LAUNCHER = "RANKS_LAUNCHED_BY"
"""Variable with the launcher's process id."""
STEP_PATIENCE = timedelta(minutes=30)
"""For gradients and whatever else the trainer exchanges."""
_LOOK_SECONDS = 0.2


def is_launched() -> bool:
    """Is this process one of several?"""
    return distributed.is_torchelastic_launched()


def is_follower() -> bool:
    return is_launched() and os.environ["RANK"] != "0"  # noqa: TID251 - the launcher says it so


def sign_of(folder: Path) -> Path:
    """A file in the run's folder that lies there as long as the leader is at work."""
    return folder / "ranks" / "at-work"


def die_with_launcher() -> None:
    """The launcher starts its processes in sessions of their own: a kill of its group does not reach them."""
    die_with_parent(signal.SIGKILL)
    if str(os.getppid()) != os.environ[LAUNCHER]:  # noqa: TID251 - it went before it could be watched
        os._exit(1)


def leave_with_leader(sign: Path) -> None:
    """End this process when the sign is gone, whatever it is doing: the leader may leave in the middle of a step, with
    an outcome that it has recorded, and followers then wait for gradients that never come."""

    def look() -> None:
        while sign.exists():
            time.sleep(_LOOK_SECONDS)
        os._exit(0)

    threading.Thread(target=look, name="sign", daemon=True).start()


def tell_launcher(work: Callable[[], None]) -> None:
    """Do the work; an error goes to the launcher too, which says it last."""
    (record(work) if is_launched() else work)()


@contextmanager
def lead(folder: Path) -> Iterator[None]:
    """The leader is at work in the run's folder; when it leaves, its followers do."""
    if is_launched():
        die_with_launcher()
    try:
        yield
    finally:
        sign_of(folder).unlink(missing_ok=True)


def join() -> Ranks:
    """After the device was chosen and before anything is put on it. Returns when all ranks have joined."""
    if not is_launched():
        return ALONE
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=STEP_PATIENCE)
    group = distributed.new_group(backend="gloo", timeout=PATIENCE)
    return Ranks(state.process_index, state.num_processes, group)
