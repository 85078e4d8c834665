"""The package's own taskset, loaded once, and its rollouts, which the library itself plays and scores."""

import asyncio
import contextvars
import itertools
import json
import os
import threading
from typing import Any

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.types import Sampling
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from .conversation import Message, PolicyConversation, column_name, plain
from .harness import CONVERSATION, INTERCEPTION, play_in_this_process, share

MODEL = "policy"
MAX_TASKS = 5_000
Task = Episode = Any
"""Objects of the library, which has no public types for them."""


class TasksetLibrary:
    def __init__(self) -> None:
        play_in_this_process()
        # every role is played through the wire, by the library's own plain chat program
        arguments = json.loads(os.environ.get("VERIFIERS_ARGUMENTS") or "{}")
        config = {"taskset": {"id": os.environ["VERIFIERS_MODULE"], **arguments}}
        role = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "model": MODEL}
        roles = agent_config_fields(resolve_env_config(config))
        self.environment = load_environment(resolve_env_config(config | dict.fromkeys(roles, role)))
        self.environment._interception = INTERCEPTION
        tasks = list(itertools.islice(iter(self.environment.taskset), MAX_TASKS))
        held = max(1, len(tasks) // 5) if len(tasks) > 1 else 0
        self.rows = {"train": tasks[: len(tasks) - held], "heldout": tasks[len(tasks) - held :] or tasks}
        systems = {task.data.system_prompt or "" for task in tasks[:50]}
        self.system = systems.pop() if len(systems) == 1 else ""
        first = self.rows["train"][0]
        self.weights = {each.__name__: float(getattr(each, "_vf_weight", 1.0)) for each in first.hooks("reward")}
        """By the name of the reward. Functions that return several are known after they were called."""
        self.weights |= {judge.reward_name: float(judge.config.weight) for judge in first.plugged_judges()}
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="verifiers").start()
        taskset = self.environment.taskset
        for work in (share(taskset.toolsets(taskset.config)), self.environment.start()):
            asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def play(self, row: Task, conversations: list[PolicyConversation]) -> None:
        async def play_one(conversation: PolicyConversation) -> None:
            context = contextvars.copy_context()
            context.run(CONVERSATION.set, conversation)
            run = self.environment.run_episode(row, ModelContext(MODEL, EvalClientConfig(), Sampling()))
            try:
                episode = await asyncio.get_running_loop().create_task(run, context=context)
                conversation.end(self._result(episode))
            except Exception as error:
                conversation.end(error)

        await asyncio.gather(*map(play_one, conversations))

    def _result(self, episode: Episode) -> Message | BaseException:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or not episode.traces:
            return RuntimeError("verifiers: " + "; ".join(f"{error.type}: {error.message}" for error in errors)[:2000])
        trace = next((trace for trace in episode.traces if trace.agent.trainable), episode.traces[0])
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored:
            return RuntimeError(f"verifiers: not scored: {', '.join(unscored)}")
        self.weights |= {name: float(reward.weight) for name, reward in trace.rewards.items()}
        metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        metrics |= {name: float(reward.score) for name, reward in trace.rewards.items()}
        return {
            "reward": float(trace.reward),
            "rewards": {column_name(name): value for name, value in metrics.items()},
            "metrics": metrics,
            "stop_condition": trace.stop_condition,
            "is_truncated": bool(trace.is_truncated),
            "prompt": [],
            "completion": [plain(message) for message in trace.messages],
        }

    def describe(self) -> Message:
        task, taskset = self.rows["train"][0], self.environment.taskset
        toolsets = [*type(task).toolsets(task.config), *taskset.toolsets(taskset.config)]
        return {
            "library": "verifiers 0.4.0",
            "kind": type(self.environment).__name__,
            "system": self.system,
            "columns": {column_name(name): weight for name, weight in self.weights.items()},
            "group_columns": [],
            "tools": [{"name": toolset.server_name} for toolset in toolsets],
            "max_turns": 0,
            "tasks": {split: len(rows) for split, rows in self.rows.items()},
        }


LIBRARY = TasksetLibrary()
