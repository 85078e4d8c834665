"""Run a submitted program on inputs. Each step is independent of the others."""

from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State
from proctor_sandbox import SandboxFailed
from proctor_sandbox.probe import run_on_inputs

from .rewards import RewardedEnvironment, column

try:
    from ..models import ProgramProbeAction, ProgramProbeObservation
except ImportError:  # run from the package's folder
    from models import ProgramProbeAction, ProgramProbeObservation


class ProgramProbeEnvironment(RewardedEnvironment):
    """Without a sandbox a step fails and nothing runs. A sandbox that breaks on one program leaves others alone."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ProgramProbeObservation:
        self._episode_id = episode_id or str(uuid4())
        self._steps = 0
        self._has_run = False
        self.begin_rewards()
        return ProgramProbeObservation()

    def step(
        self, action: ProgramProbeAction, timeout_s: float | None = None, **kwargs: Any
    ) -> ProgramProbeObservation:
        self._steps += 1
        self._has_run = False
        try:
            answers = run_on_inputs(action.source, action.inputs, function=action.function or None)
        except SandboxFailed as error:
            return self.rewarded(ProgramProbeObservation(problem=str(error)[:300]))
        self._has_run = True
        return self.rewarded(ProgramProbeObservation(answers=[[each.outcome, each.text] for each in answers]))

    @column
    def ran(self) -> float:
        return float(self._has_run)

    @property
    def state(self) -> State:
        return State(episode_id=self._episode_id, step_count=self._steps)
