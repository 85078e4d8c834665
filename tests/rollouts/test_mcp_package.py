"""An MCP-style package on openenv's own MCPEnvironment: its tools are discovered, and the policy's calls drive it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.tools import write_call
from backend.domain.rollouts.rollout import Rollout
from backend.domain.runs.plans import Sampling
from tests.envhost_fixture import package_files, prepared
from tests.policies.endpoint import completion, serving
from tests.rollouts.world import Replies, plans, play
from workers.environments.client import EnvHost, EnvServer
from workers.policies.base import Policy
from workers.policies.openai_api import Endpoint, OpenAiPolicy
from workers.policies.scripted import ScriptedPolicy

pytestmark = pytest.mark.slow

MANIFEST = """\
spec_version: 1
name: shelf
app: server.app:app
proctor:
  agent:
    system: Reach five.
    observation: >-
      {% if error is defined and error %}{{ error.message }}
      {%- elif result is defined and result %}{{ result.data }}
      {%- else %}The shelf is empty.{% endif %}
    action:
      format: tool
      field: tool_name
      tools: tools
      extra: {type: call_tool}
      discover: {type: list_tools}
  rewards: {win: 1.0, format: 0.2}
  episode: {max_turns: 6}
  resources: {memory_mb: 512, sessions: 8}
"""

APP = '''\
from fastmcp import FastMCP
from openenv.core.env_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class ShelfEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        tools = FastMCP("shelf")
        self.total, self.is_over = 0, False

        @tools.tool
        def add(number: int, note: str = "") -> str:
            """Put a number on the shelf."""
            if number > 3:
                raise ValueError("too heavy")
            self.total += number
            return f"{self.total} on the shelf"

        @tools.tool
        def finish() -> str:
            """Say that it is enough."""
            self.is_over = True
            return "done"

        super().__init__(tools)

    def reset(self, seed=None, episode_id=None, **arguments):
        self.total, self.is_over = 0, False
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    def _step_impl(self, action, timeout_s=None, **arguments):
        raise ValueError("tools only")

    async def step_async(self, action, timeout_s=None, **arguments):
        observation = await super().step_async(action, timeout_s=timeout_s, **arguments)
        observation.done = self.is_over
        observation.metadata["rewards"] = {"win": float(self.is_over and self.total == 5)}
        return observation

    @property
    def state(self):
        return State(total=self.total)


app = create_app(ShelfEnvironment, CallToolAction, CallToolObservation, env_name="shelf", max_concurrent_envs=8)
'''


@pytest_asyncio.fixture
async def server(env_host: EnvHost) -> AsyncIterator[EnvServer]:
    files = {**package_files("shelf"), "openenv.yaml": MANIFEST, "server/app.py": APP, "models.py": ""}
    del files["server/counter_environment.py"]
    async with env_host.lease(await prepared(env_host, files), manifest().proctor.resources) as server:
        yield server


def manifest() -> Manifest:
    return read_manifest(MANIFEST)


async def episodes(server: EnvServer, policy: Policy, count: int = 1) -> list[Rollout]:
    return await play(server, policy, plans(count, manifest=manifest()), manifest())  # type: ignore[arg-type]


async def test_its_tools_are_listed_to_the_policy_and_called_by_it(server: EnvServer) -> None:
    calls = write_call("add", {"number": 3}), write_call("add", {"number": 2}), write_call("finish", {})
    [rollout] = await episodes(server, Replies(*calls))
    assert rollout.columns == {"win": 1.0, "format": 1.0}
    assert rollout.steps[0].action == {"type": "call_tool", "tool_name": "add", "arguments": {"number": 3}}
    assert [step.text for step in rollout.steps] == ["3 on the shelf", "5 on the shelf", ""]
    assert "Put a number on the shelf." in rollout.messages[0]["content"]
    assert rollout.messages[1]["content"] == "The shelf is empty."


async def test_arguments_are_held_against_the_schema_that_it_lists(server: EnvServer) -> None:
    wrong = (write_call("add", {"number": "three"}), write_call("add", {}), write_call("take", {}))
    too_heavy = write_call("add", {"number": 9})
    [rollout] = await episodes(server, Replies(*wrong, too_heavy, write_call("finish", {})))
    assert [step.action is None for step in rollout.steps] == [True, True, True, False, False]
    assert "`number`: 'three' is not" in str(rollout.steps[0].note)
    assert rollout.steps[2].note == "There is no tool 'take'; there are: add, finish."
    assert "too heavy" in rollout.steps[3].text


async def test_random_play_needs_nothing_but_what_it_lists(server: EnvServer) -> None:
    rollouts = await episodes(server, ScriptedPolicy("random"), 8)
    assert {rollout.columns["format"] for rollout in rollouts} == {1.0}


async def test_an_endpoint_plays_it_by_its_own_tool_calls(server: EnvServer) -> None:
    def call(name: str, arguments: str) -> dict[str, object]:
        return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}

    answers = [
        completion(None, finish="tool_calls", tool_calls=[call("add", '{"number": 3}')]),
        completion(None, finish="tool_calls", tool_calls=[call("add", '{"number": 2}')]),
        completion(None, finish="tool_calls", tool_calls=[call("finish", "")]),
    ]
    async with serving(*answers) as endpoint:
        policy = OpenAiPolicy(Endpoint(endpoint.url, "small"), Sampling())
        [rollout] = await episodes(server, policy)
        await policy.aclose()
    assert [tool["function"]["name"] for tool in endpoint.bodies[0]["tools"]] == ["add", "finish"]
    assert endpoint.bodies[2]["messages"][3]["content"] == "3 on the shelf"
    assert rollout.columns["win"] == 1.0
