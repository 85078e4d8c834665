"""The package's own taskset, loaded once, and its rollouts, which the library itself plays and scores."""

import asyncio
import contextvars
import itertools
import json
import os
import re
import threading
from typing import Any

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.types import Sampling
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from .harness import INTERCEPTION, LINE, play_in_this_process, share
from .lines import Line, plain

MODEL = "policy"
MOST_TASKS = 5_000
_WORD = re.compile(r"[^a-z0-9_]+")


class Library:
    def __init__(self) -> None:
        play_in_this_process()
        self.module = os.environ["VERIFIERS_MODULE"]
        self.environment = load_environment(_configuration(self.module))
        self.environment._interception = INTERCEPTION
        tasks = list(itertools.islice(iter(self.environment.taskset), MOST_TASKS))
        held = max(1, len(tasks) // 5) if len(tasks) > 1 else 0
        self.rows = {"train": tasks[: len(tasks) - held], "heldout": tasks[len(tasks) - held :] or tasks}
        systems = {task.data.system_prompt or "" for task in tasks[:50]}
        self.system = systems.pop() if len(systems) == 1 else ""
        self.weights = self._declared_weights()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="verifiers").start()
        asyncio.run_coroutine_threadsafe(self._begin(), self.loop).result()

    async def _begin(self) -> None:
        taskset = self.environment.taskset
        await share(taskset.toolsets(taskset.config))
        await self.environment.start()

    def _declared_weights(self) -> dict[str, float]:
        """Weights by the name of the reward; functions that return several are heard of when they were called."""
        task = self.rows["train"][0]
        found = {function.__name__: float(getattr(function, "_vf_weight", 1.0)) for function in task.hooks("reward")}
        return found | {judge.reward_name: float(judge.config.weight) for judge in task.plugged_judges()}

    def row(self, split: str, index: int) -> Any:
        rows = self.rows["heldout" if split == "heldout" else "train"]
        return rows[index % len(rows)]

    @staticmethod
    def answer(row: Any) -> str | None:
        """The one right answer, where the task has one."""
        answer = getattr(row.data, "answer", None)
        return answer if isinstance(answer, str) else None

    def start(self, row: Any, lines: list[Line]) -> Any:
        """Let the library play the task once for every line."""
        return asyncio.run_coroutine_threadsafe(self._play(row, lines), self.loop)

    async def _play(self, row: Any, lines: list[Line]) -> None:
        await asyncio.gather(*(self._play_one(row, line) for line in lines))

    async def _play_one(self, row: Any, line: Line) -> None:
        context = contextvars.copy_context()
        context.run(LINE.set, line)
        run = self.environment.run_episode(row, ModelContext(MODEL, EvalClientConfig(), Sampling()))
        try:
            episode = await asyncio.get_running_loop().create_task(run, context=context)
            line.end(self._result(episode))
        except Exception as error:
            line.end(error)

    def _result(self, episode: Any) -> dict[str, Any] | BaseException:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or not episode.traces:
            return RuntimeError("verifiers: " + "; ".join(f"{error.type}: {error.message}" for error in errors)[:2000])
        trace = next((trace for trace in episode.traces if trace.agent.trainable), episode.traces[0])
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored:
            return RuntimeError(f"verifiers: not scored: {', '.join(unscored)}")
        for name, reward in trace.rewards.items():
            self.weights[name] = float(reward.weight)
        scores = {name: float(reward.score) for name, reward in trace.rewards.items()}
        metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        return {
            "reward": float(trace.reward),
            "rewards": {_column_name(name): value for name, value in (metrics | scores).items()},
            "metrics": metrics | scores,
            "stop_condition": trace.stop_condition,
            "is_truncated": bool(trace.is_truncated),
            "prompt": [],
            "completion": [plain(message) for message in trace.messages],
        }

    def described(self) -> dict[str, Any]:
        """Facts for the author of the manifest."""
        task = self.rows["train"][0]
        taskset = self.environment.taskset
        toolsets = [*type(task).toolsets(task.config), *taskset.toolsets(taskset.config)]
        return {
            "library": "verifiers 0.4.0",
            "kind": type(self.environment).__name__,
            "system": self.system,
            "columns": {_column_name(name): weight for name, weight in self.weights.items()},
            "group_columns": [],
            "tools": [{"name": toolset.server_name} for toolset in toolsets],
            "max_turns": 0,
            "tasks": {split: len(rows) for split, rows in self.rows.items()},
        }


def _configuration(module: str) -> Any:
    """Every role is played through the wire, by the library's own plain chat program."""
    arguments = json.loads(os.environ.get("VERIFIERS_ARGUMENTS") or "{}")
    raw = {"taskset": {"id": module, **arguments}}
    roles = agent_config_fields(resolve_env_config(raw))
    role = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "model": MODEL}
    return resolve_env_config(raw | dict.fromkeys(roles, role))


def _column_name(function: str) -> str:
    name = _WORD.sub("_", function.lower()).strip("_") or "score"
    name = name if name[0].isalpha() else f"f_{name}"
    return name[:40] if name not in {"reward", "format", "length"} else f"{name}_score"
