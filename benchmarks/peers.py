"""Peers: programs and environments that Proctor is measured against, run by interpreters that have no Proctor.

Nothing here imports Proctor, and each function imports what only its own interpreter has:

    python peers.py openenv URL SESSIONS FRAMES CHOICES FIELD         # OpenEnv's client: frames/s, CPU
    python peers.py verifiers TURNS COUNT CONCURRENCY URL             # verifiers: rollouts/s, CPU and memory
    python peers.py endpoint                                          # a model server that answers at once

Every program prints JSON. `PACKAGE` has the same environments as OpenEnv packages.
"""

# mypy: disable-error-code="import-not-found,misc,no-any-return"

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from difflib import SequenceMatcher
from typing import Any, cast

MODEL = "instant"
ANSWER = "<reply>edcba</reply>"
"""Reply of the instant endpoint. Both environments below can read it."""

PACKAGE = {
    "openenv.yaml": """
spec_version: 1
name: turns_@TURNS@
type: space
runtime: fastapi
app: server.app:app
port: 8000
proctor:
  agent:
    system: "Reply."
    observation: "{{ text }}"
    action: {format: tag, tag: reply, field: reply}
    on_unparsable: pass
  rewards:
    likeness: {weight: 1.0, over_episode: last}
    format: 0.2
  episode: {max_turns: @TURNS@, step_timeout_seconds: 10, episode_timeout_seconds: 60, max_tokens_per_turn: 64}
  tasks: {train: 100000, heldout: 100000}
  resources: {memory_mb: 512, cpus: 1, network: none, sessions: 256}
""",
    "models.py": '''
"""Action and observation."""

from openenv.core.env_server.types import Action, Observation


class Reply(Action):
    """The policy's reply."""

    reply: str


class Prompt(Observation):
    """The environment's message."""

    text: str = ""
''',
    "server/__init__.py": "",
    "server/app.py": '''
"""The server."""

from models import Prompt, Reply
from openenv.core.env_server.http_server import create_app

from .environment import Turns

app = create_app(Turns, Reply, Prompt, env_name="turns", max_concurrent_envs=256)
''',
    "server/environment.py": '''
"""A dialog of a fixed number of turns. The reward compares the last reply with a text."""

from difflib import SequenceMatcher
from typing import Any

from models import Prompt, Reply
from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column


class Turns(RewardedEnvironment):
    """Does the same work as `verifiers_environment` of the benchmark."""

    def reset(self, seed: int | None = None, index: int = 0, **kwargs: Any) -> Prompt:
        self._index, self._turns = index, 0
        self.begin_rewards()
        return Prompt(text=f"abcde {index}")

    def step(self, action: Reply, timeout_s: float | None = None, **kwargs: Any) -> Prompt:
        self._reply = action.reply
        self._turns += 1
        return self.rewarded(Prompt(text=f"turn {self._turns}", done=self._turns == @TURNS@))

    @column
    def likeness(self) -> float:
        return SequenceMatcher(None, self._reply, f"{self._index} edcba").ratio()

    @property
    def state(self) -> State:
        return State()
''',
}


def package(turns: int, base: str) -> dict[str, str]:
    """Return the files of the OpenEnv package with this number of turns. `base` is the reward base class."""
    files = {path: text.lstrip("\n").replace("@TURNS@", str(turns)) for path, text in PACKAGE.items()}
    return {**files, "server/rewards.py": base}


def verifiers_environment(turns: int, count: int) -> Any:
    """Return the environment of `PACKAGE` as verifiers 0.3.1 users write it."""
    import verifiers as vf
    from datasets import Dataset

    class Turns(vf.MultiTurnEnv):
        async def setup_state(self, state: Any, **_: Any) -> Any:
            state["turns"] = 0
            return state

        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            state["turns"] += 1
            return [{"role": "user", "content": f"turn {state['turns']}"}]

    def likeness(parser: Any, completion: Any, answer: str, **_: Any) -> float:
        return SequenceMatcher(None, parser.parse_answer(completion) or "", answer).ratio()

    rows = [{"question": f"abcde {index}", "answer": f"{index} edcba"} for index in range(count)]
    parser = vf.XMLParser(["reply"], answer_field="reply")
    rubric = vf.Rubric(funcs=[likeness, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
    settings = {"dataset": Dataset.from_list(rows), "system_prompt": "Reply.", "parser": parser, "rubric": rubric}
    return vf.SingleTurnEnv(**settings) if turns == 1 else Turns(**settings, max_turns=turns)


async def play_verifiers(turns: int, count: int, concurrency: int, url: str) -> dict[str, float]:
    """Play rollouts with verifiers in this process. Nothing is stored."""
    from verifiers.types import ClientConfig

    environment = verifiers_environment(turns, count)
    client = ClientConfig(api_base_url=url, api_key_var="PEER_KEY")

    async def play(examples: int) -> list[Any]:
        result = await environment.evaluate(
            client,
            MODEL,
            num_examples=examples,
            rollouts_per_example=1,
            max_concurrent=concurrency,
            independent_scoring=True,
            on_progress=[],
        )
        return list(result["outputs"])

    await play(min(count, 32))  # warm up
    cpu, began = time.process_time(), time.perf_counter()
    outputs = await play(count)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "rollouts_per_second": count / seconds,
        "cpu_ms": 1000 * cpu / count,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "reward": sum(output["reward"] for output in outputs) / count,
        "errors": sum(output["error"] is not None for output in outputs),
    }


async def play_openenv(url: str, sessions: int, frames: int, choices: str, field: str) -> dict[str, float]:
    """Play the first legal choice through OpenEnv's GenericEnvClient. `other_cpu`: CPU seconds before and after."""
    from openenv.core import GenericEnvClient

    clients = [GenericEnvClient(base_url=url) for _ in range(sessions)]
    for client in clients:
        await client.connect()
        await client.reset(seed=1)

    async def play(client: Any, number: int) -> int:
        count = 0
        while count < frames // sessions:
            result = await client.reset(seed=number * (frames // sessions) + count)
            count += 1
            while not result.done:
                result = await client.step({field: result.observation[choices][0]})
                count += 1
        return count

    began, cpu = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(*(play(client, number) for number, client in enumerate(clients)))
    rate, cpu = sum(counts) / (time.perf_counter() - began), time.process_time() - cpu
    for client in clients:
        await client.close()
    return {"frames": sum(counts), "frames_per_second": rate, "other_cpu": time.process_time() - cpu}


async def cpu_of_calls(call: Callable[[], Awaitable[object]], count: int, concurrency: int) -> float:
    """Return this process's CPU time per call in milliseconds."""

    async def calls(number: int) -> None:
        numbers = iter(range(number))

        async def work() -> None:
            for _ in numbers:
                await call()

        await asyncio.gather(*(work() for _ in range(concurrency)))

    await calls(2 * concurrency)
    began = time.process_time()
    await calls(count)
    return 1000 * (time.process_time() - began) / count


async def cpu_of_openai(url: str, count: int, concurrency: int, messages: list[Any]) -> float:
    """Return the CPU time of one call of the openai client in milliseconds."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="none") as client:

        def call() -> Awaitable[object]:
            return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=64, seed=1)

        return await cpu_of_calls(call, count, concurrency)


class InstantEndpoint(asyncio.Protocol):
    """One connection to a chat completions server that answers at once.

    It finds the requests in the stream without a web framework, whose own work would dominate the measurement.
    """

    def __init__(self) -> None:
        self._received = b""
        body = json.dumps(
            {
                "id": "chatcmpl-instant",
                "object": "chat.completion",
                "created": 0,
                "model": MODEL,
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}],
                "usage": {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32},
            }
        ).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._response = head.encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (size := self._request_size()) and len(self._received) >= size:
            self._received = self._received[size:]
            self._transport.write(self._response)

    def _request_size(self) -> int:
        """Return the size of the first request with its body, or 0 while its head is incomplete."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return 0
        _, length, rest = self._received[:end].lower().partition(b"content-length:")
        return end + 4 + (int(rest.split(b"\r\n", 1)[0]) if length else 0)


async def serve_endpoint() -> None:
    """Print the address of an instant endpoint on loopback and serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(InstantEndpoint, "127.0.0.1", 0, backlog=2048)
    host, port = server.sockets[0].getsockname()
    _print(f"http://{host}:{port}/v1")
    await server.serve_forever()


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["openenv", url, sessions, frames, choices, field]:
            _print(asyncio.run(play_openenv(url, int(sessions), int(frames), choices, field)))
            os._exit(0)  # the end of the interpreter is not part of the measurement
        case ["verifiers", turns, count, concurrency, url]:
            import uvloop

            uvloop.install()
            _print(asyncio.run(play_verifiers(int(turns), int(count), int(concurrency), url)))
            os._exit(0)  # verifiers leaves threads behind
        case ["endpoint"]:
            asyncio.run(serve_endpoint())
        case _:
            sys.exit(__doc__)
