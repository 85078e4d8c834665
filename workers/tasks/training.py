"""The jobs `training.run` and `training.preflight`: each runs in a separate process, which this one watches."""

import signal
import statistics
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.domain.text import plain_text
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import AlarmsChoice, action_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import AlarmAction, PreflightStatus, RunStatus
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import MetricPoint, Run
from backend.training.steering import current_settings
from backend.training.tables import Preflight
from workers.storage.steering import AlarmDraft, clear_alarms, record_alarm
from workers.tasks.children import child_error, must_run_child, run_child
from workers.tasks.registry import JobContext
from workers.training.assignment import training_folder
from workers.training.heartbeats import read_signs, suspects

MODULE = "workers.training.run"
MODULES = {"unsloth": "workers.training.with_unsloth"}
"""Engines whose training process starts differently."""
LAUNCHER = "workers.training.launch"
"""Starts runs that train in several processes."""
PREFLIGHT_MODULE = "workers.training.preflight.run"
STALL, OUT_OF_MEMORY, KILLED = "stall", "out_of_memory", "process_killed"
STEPS = 20
"""Latest steps whose median is the usual duration of a step."""
STARTUP_FACTOR = 3.0
"""Before the first step, while packages and weights load, a stall may last this many times as long."""
_CONTROL_GROUPS = Path("/sys/fs/cgroup")

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """Train in a separate process, which resumes from its last state and records how the run ended.

    If the process fails, the job is tried again, unless it would fail in the same way.
    """
    run_id = context.need_run()
    with transaction() as session:
        row = session.get_one(Run, run_id)
        if not begin_run(session, row):
            return
        module = module_of(row)
        samples_ahead = TrainingConfiguration.of_run(row.configuration).samples_ahead
    watchdog = TrainingWatchdog(run_id)
    status = run_child(
        module,
        [str(run_id)],
        run_id=run_id,
        may_continue=watchdog.may_continue,
        is_fresh=module in MODULES.values(),  # they patch what others import
        has_children=samples_ahead,
    )
    if status and not watchdog.ends_run(status):
        raise child_error(module, status, run_id)


def module_of(run: Run) -> str:
    """The module that starts the run."""
    if run.configuration.get("hardware", {}).get("processes", 1) > 1:
        return LAUNCHER
    return MODULES.get(str(run.configuration.get("engine")), MODULE)


def run_preflight(context: JobContext) -> None:
    """Inspect a training run that was not started yet. Another attempt starts again."""
    preflight_id = uuid.UUID(context.arguments["preflight_id"])
    with transaction() as session:
        preflight = session.get(Preflight, preflight_id, with_for_update=True)
        if preflight is None or preflight.status.is_over:
            return
        preflight.status, preflight.progress = PreflightStatus.RUNNING, {"phase": "starting"}
        announce(session, topic_of("preflight", preflight_id))
    must_run_child(PREFLIGHT_MODULE, [str(preflight_id)], run_id=None)


def give_up_preflight(session: Session, context: JobContext, error: str) -> None:
    """Called when the preflight will not be tried again."""
    preflight = session.get(Preflight, uuid.UUID(context.arguments["preflight_id"]))
    if preflight is not None and not preflight.status.is_over:
        preflight.status, preflight.reason = PreflightStatus.FAILED, plain_text(error)
        preflight.ended_at = datetime.now(UTC)
        announce(session, topic_of("preflight", preflight.id))


def count_memory_kills(process: Path = Path("/proc/self"), groups: Path = _CONTROL_GROUPS) -> int:
    """Processes killed by the kernel for memory, in this control group (version 2 or 1) or else on this machine."""
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


class TrainingWatchdog:
    """Watches one attempt at a training run from outside: it raises alarms if the process stalls or is killed."""

    def __init__(self, run_id: uuid.UUID, memory_kills: Callable[[], int] = count_memory_kills) -> None:
        self.run_id = run_id
        self._memory_kills = memory_kills
        self._kills_before = memory_kills()
        self._position: tuple[object, int] | None = None
        """Progress and number of stored rollouts; they change while the run advances."""
        self._since = time.monotonic()
        self._is_stalled = False
        self._end: tuple[RunStatus, str] | None = None

    def may_continue(self) -> bool:
        """Called from time to time while the process runs. False ends it."""
        run, step, alarms = self._read_run()
        position = (run.progress, run.next_seq)
        if position != self._position:
            self._position, self._since = position, time.monotonic()
            if self._is_stalled:
                self._is_stalled = False
                clear_alarms(self.run_id, [STALL], step)
        elif not self._is_stalled and action_of(alarms, STALL):
            self._check_stall(alarms)
        return self._end is None

    def ends_run(self, status: int) -> bool:
        """Whether the run ends with this exit status, so that no other attempt follows. An alarm states the reason."""
        if self._end is None and status == -signal.SIGKILL and self._memory_kills() > self._kills_before:
            sentence = "The kernel killed the training process because the machine ran out of memory."
            action = self._raise_alarm(OUT_OF_MEMORY, sentence)
            status_after = RunStatus.STOPPED if action is AlarmAction.STOP else RunStatus.PAUSED
            self._end = status_after, f"{sentence} {ALARM_KINDS[OUT_OF_MEMORY].advice}"
        elif self._end is None and status < 0:
            name = signal.Signals(-status).name
            self._raise_alarm(KILLED, f"The training process was ended by {name}. It is tried again.")
        if self._end is None:
            return False
        with transaction() as session:
            run = session.get_one(Run, self.run_id)
            if not run.status.is_over:
                finish_run(session, run, self._end[0], reason=self._end[1])
        return True

    def _check_stall(self, alarms: AlarmsChoice) -> None:
        """Raise an alarm if nothing has happened for much longer than a usual step."""
        silent = time.monotonic() - self._since
        if silent < alarms.stall_seconds:
            return
        latest = (
            select(MetricPoint.value)
            .where(MetricPoint.run_id == self.run_id, MetricPoint.name == "seconds/step")
            .order_by(MetricPoint.step.desc())
            .limit(STEPS)
        )
        with transaction() as session:
            seconds = [value for value in session.scalars(latest) if value is not None]
        limit, usual = alarms.stall_seconds * STARTUP_FACTOR, ""
        if seconds:
            median = statistics.median(seconds)
            limit, usual = (
                max(alarms.stall_seconds, alarms.stall_factor * median),
                f" A step usually takes {median:.1f}.",
            )
        if silent < limit:
            return
        self._is_stalled = True
        sentence = f"Nothing has happened for {silent:.0f} seconds.{usual}"
        if waited_for := suspects(read_signs(training_folder(self.run_id))):
            sentence += f" Other processes wait for {'; '.join(map(str, waited_for))}."
        action = self._raise_alarm(STALL, sentence)
        if action in {AlarmAction.PAUSE, AlarmAction.STOP}:
            reason = f"Alarm {STALL}: {sentence} Resume the run to continue from its last saved state."
            self._end = RunStatus.STOPPED if action is AlarmAction.STOP else RunStatus.PAUSED, reason

    def _raise_alarm(self, name: str, sentence: str) -> AlarmAction:
        """Store the alarm and return the action that the run is configured to take."""
        _, step, alarms = self._read_run()
        action = action_of(alarms, name) or AlarmAction.NOTE
        record_alarm(self.run_id, AlarmDraft(name, step, sentence, action, name, step, {}))
        logger.warning("alarm", alarm=name, sentence=sentence, action=str(action))
        return action

    def _read_run(self) -> tuple[Run, int, AlarmsChoice]:
        """The run, its latest reported step, and its alarm settings."""
        with transaction() as session:
            run = session.get_one(Run, self.run_id)
            step = int(run.progress.get("done") or 0) if run.progress.get("phase") == "grpo" else 0
            return run, step, current_settings(session, run).alarms
