"""A client for people who use this environment on its own."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

try:
    from .models import __CLASS__Action, __CLASS__Observation
except ImportError:  # used from inside the package's folder
    from models import __CLASS__Action, __CLASS__Observation


class __CLASS__Env(EnvClient[__CLASS__Action, __CLASS__Observation, State]):
    """`with __CLASS__Env(base_url="http://localhost:8000").sync() as env: env.reset(seed=1)`"""

    def _step_payload(self, action: __CLASS__Action) -> dict[str, Any]:
        return action.model_dump(exclude={"metadata"})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[__CLASS__Observation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = __CLASS__Observation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done, metadata=observation.metadata)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State.model_validate(payload)
