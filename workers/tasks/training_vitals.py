"""A training process seen from outside: is it alive, does it get on, what killed it."""

import signal
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import structlog
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import AlarmsChoice, action_of
from backend.domain.vocabulary import AlarmAction, RunStatus
from backend.runs.service import finish_run
from backend.runs.tables import MetricPoint, Run
from backend.training.steering import current_settings
from workers.storage.steering import AlarmDraft, clear_alarms, record_alarm

STALL, OUT_OF_MEMORY, KILLED = "stall", "out_of_memory", "process_killed"
STEPS = 20
"""Newest steps whose median is a usual step."""
BEFORE_STEPS = 3.0
"""Before the first step, while packages and weights are fetched, patience is so many times as long."""
_CONTROL_GROUPS = Path("/sys/fs/cgroup")

logger = structlog.get_logger(__name__)


def count_memory_kills(process: Path = Path("/proc/self"), groups: Path = _CONTROL_GROUPS) -> int:
    """Processes that the kernel killed for memory: of our control group (version 2 or 1), else of the machine."""
    lines = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
    paths = {controllers: path.strip("/") for _, controllers, path in lines}
    counters = (
        groups / paths.get("", "") / "memory.events",
        groups / "memory" / paths.get("memory", "") / "memory.oom_control",
        groups / "memory" / "memory.oom_control",
        Path("/proc/vmstat"),
    )
    for counter in counters:
        if counter.exists():
            counts = dict(line.split() for line in counter.read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


class Vitals:
    """Of one attempt at a training run."""

    def __init__(self, run_id: uuid.UUID, memory_kills: Callable[[], int] = count_memory_kills) -> None:
        self.run_id = run_id
        self._memory_kills = memory_kills
        self._kills_before = memory_kills()
        self._sign: object = None
        self._since = time.monotonic()
        self._is_stalled = False
        self._ended: tuple[RunStatus, str] | None = None

    def may_go_on(self) -> bool:
        """Looked at now and then while the process lives; False ends it."""
        with transaction() as session:
            run = session.get_one(Run, self.run_id)
            sign, step, choice = (run.progress, run.next_seq), _step(run), current_settings(session, run).alarms
        if sign != self._sign:
            self._sign, self._since = sign, time.monotonic()
            if self._is_stalled:
                self._is_stalled = False
                clear_alarms(self.run_id, [STALL], step)
        elif not self._is_stalled and action_of(choice, STALL):
            self._look_for_a_stall(step, choice)
        return self._ended is None

    def after_bad_end(self, status: int) -> bool:
        """Is the run laid down, so that no other attempt should follow? Says why in an alarm."""
        if self._ended is not None:
            return self._finish(*self._ended)
        if status == -signal.SIGKILL and self._memory_kills() > self._kills_before:
            kind = ALARM_KINDS[OUT_OF_MEMORY]
            sentence = "The kernel killed the training process, because the memory was used up."
            action = self._raise(OUT_OF_MEMORY, sentence)
            return self._finish(_status(action), f"{sentence} {kind.advice}")
        if status < 0:
            self._raise(KILLED, f"The training process was ended by {signal.Signals(-status).name}; it is tried again.")
        return False

    def _look_for_a_stall(self, step: int, choice: AlarmsChoice) -> None:
        silent = time.monotonic() - self._since
        if silent < choice.stall_seconds:
            return
        usual = self._usual_step()
        limit = choice.stall_seconds * BEFORE_STEPS
        if usual is not None:
            limit = max(choice.stall_seconds, choice.stall_factor * usual)
        if silent < limit:
            return
        self._is_stalled = True
        than = f"; a step usually takes {usual:.1f}" if usual is not None else ""
        sentence = f"For {silent:.0f} seconds nothing has happened{than}."
        action = self._raise(STALL, sentence)
        if action in {AlarmAction.PAUSE, AlarmAction.STOP}:
            self._ended = (_status(action), f"Alarm {STALL}: {sentence} Resume it to go on from its last saved state.")

    def _usual_step(self) -> float | None:
        newest = (
            select(MetricPoint.value)
            .where(MetricPoint.run_id == self.run_id, MetricPoint.name == "seconds/step")
            .order_by(MetricPoint.step.desc())
            .limit(STEPS)
        )
        with transaction() as session:
            values = [value for value in session.scalars(newest) if value is not None]
        return statistics.median(values) if values else None

    def _raise(self, name: str, sentence: str) -> AlarmAction:
        """Store the alarm; what the run does about it."""
        with transaction() as session:
            run = session.get_one(Run, self.run_id)
            step, choice = _step(run), current_settings(session, run).alarms
        action = action_of(choice, name) or AlarmAction.NOTE
        record_alarm(self.run_id, AlarmDraft(name, step, sentence, action, name, step, {}))
        logger.warning("alarm", alarm=name, sentence=sentence, action=str(action))
        return action

    def _finish(self, status: RunStatus, reason: str) -> bool:
        with transaction() as session:
            run = session.get_one(Run, self.run_id)
            if not run.status.is_over:
                finish_run(session, run, status, reason=reason)
        return True


def _step(run: Run) -> int:
    """The step that the run last told of."""
    return int(run.progress.get("done") or 0) if run.progress.get("phase") == "grpo" else 0


def _status(action: AlarmAction) -> RunStatus:
    return RunStatus.STOPPED if action is AlarmAction.STOP else RunStatus.PAUSED
