"""The package's own environment, loaded once, and its rollouts, which the library itself plays and scores."""

import asyncio
import importlib
import json
import math
import os
import threading
import time
import uuid
from dataclasses import dataclass

from verifiers.legacy.clients import Client
from verifiers.legacy.rubrics.rubric import Rubric
from verifiers.legacy.rubrics.rubric_group import RubricGroup
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from .conversation import Message, PolicyConversation, column_name, plain

MODEL = "policy"


class WirePolicy(Client):
    """The model that the library calls: the policy at the other end of a conversation."""

    def __init__(self, conversations: list[PolicyConversation]) -> None:
        super().__init__(object())
        self._free = list(conversations)
        """Conversations that no rollout has claimed yet, in the order of their sessions."""
        self._claimed: dict[str, PolicyConversation] = {}

    def conversation_of(self, trajectory_id: str) -> PolicyConversation:
        if trajectory_id not in self._claimed:
            self._claimed[trajectory_id] = self._free.pop(0)
        return self._claimed[trajectory_id]

    async def get_response(self, prompt, model, sampling_args, tools=None, **named) -> Response:  # type: ignore[no-untyped-def]
        reply = await self.conversation_of(named["state"]["trajectory_id"]).ask(list(prompt), tools)
        calls = None
        if reply.tool:
            arguments = json.dumps(reply.arguments, ensure_ascii=False)
            calls = [ToolCall(id=f"call_{uuid.uuid4().hex[:12]}", name=reply.tool, arguments=arguments)]
        message = ResponseMessage(
            content=reply.text if reply.text or not calls else None,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return Response(id=uuid.uuid4().hex, created=int(time.time()), model=model, message=message)

    async def close(self, *arguments: object) -> None:
        """Nothing to close. The other abstract methods are steps of the library's `get_response`."""

    setup_client = to_native_prompt = to_native_tool = close
    get_native_response = raise_from_native_response = from_native_response = close


@dataclass
class RubricColumn:
    name: str
    """A valid name of a reward column."""
    function: str
    weight: float
    compares: bool
    """It scores a group of rollouts of the same task against one another."""


class RubricLibrary:
    def __init__(self) -> None:
        module = importlib.import_module(os.environ["VERIFIERS_MODULE"])
        arguments = json.loads(os.environ.get("VERIFIERS_ARGUMENTS") or "{}")
        env = self.environment = module.load_environment(**arguments)

        # without a separate evaluation set, the last fifth of the rows is held out
        names = ("dataset", "dataset_source", "eval_dataset", "eval_dataset_source")
        known = {name.removesuffix("_source") for name in names if getattr(env, name, None) is not None}
        train = env.get_dataset().to_list() if "dataset" in known else None
        heldout = env.get_eval_dataset().to_list() if "eval_dataset" in known or train is None else None
        if train is None:
            train = heldout
        elif heldout is None:
            held = max(1, len(train) // 5) if len(train) > 1 else 0
            train, heldout = train[: len(train) - held], train[len(train) - held :]
        self.rows = {"train": train, "heldout": heldout}
        # the rubric's functions, and whether the reward is their weighted sum, which a subclass may change
        leaves, is_sum = [env.rubric], True
        while any(isinstance(leaf, RubricGroup) for leaf in leaves):
            leaves = [each for leaf in leaves for each in (leaf.rubrics if isinstance(leaf, RubricGroup) else [leaf])]
        columns: dict[str, RubricColumn] = {}
        for leaf in [leaf for leaf in leaves if leaf is not None]:
            is_sum = is_sum and type(leaf).score_rollout is Rubric.score_rollout
            is_sum = is_sum and type(leaf).score_group is Rubric.score_group
            for function, weight in zip(leaf._get_reward_funcs(), leaf._get_reward_weights(), strict=True):
                name = getattr(function, "__name__", repr(function))
                known = columns.get(name)
                is_sum = is_sum and (known is None or known.weight == weight)  # twice: their values are added up
                compares = leaf._is_group_func(function) or bool(known and known.compares)
                columns[name] = RubricColumn(column_name(name), name, float(weight), compares)
        self.columns = list(columns.values())
        is_sum = is_sum and len({column.name for column in self.columns}) == len(self.columns)
        self.is_weighted_sum = is_sum and all(math.isfinite(column.weight) for column in self.columns)
        systems = set()
        for row in self.rows["train"][:50]:
            prompt = row.get("prompt")
            first = plain(prompt[0]) if isinstance(prompt, list) and prompt else {}
            content = first.get("content") if first.get("role") == "system" else ""
            systems.add(content if isinstance(content, str) else "")
        self.system = systems.pop() if len(systems) == 1 else ""
        """The beginning of every task; a system message that differs from it is part of the task's own text."""
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="verifiers").start()

    async def play(self, row: Message, conversations: list[PolicyConversation]) -> None:
        policy, env = WirePolicy(conversations), self.environment
        try:
            if len(conversations) > 1 or env.requires_group_rollouts:
                rows = [dict(row) for _ in conversations]
                outcomes = await env.run_group(rows, policy, MODEL, {}, state_columns=["trajectory_id"])
            else:
                outcomes = [await env.run_rollout(dict(row), policy, MODEL, {}, state_columns=["trajectory_id"])]
        except Exception as error:
            for conversation in conversations:
                conversation.end(error)
            return
        for outcome in outcomes:
            policy.conversation_of(outcome["trajectory_id"]).end(self._result(outcome))

    def _result(self, outcome: Message) -> Message | BaseException:
        if error := outcome.get("error"):
            if isinstance(error, dict):
                error = error.get("error_chain_str") or error.get("message") or error.get("error")
            return RuntimeError(f"verifiers: {str(error)[:2000]}")
        reward = float(outcome["reward"])
        metrics = {name: float(value) for name, value in (outcome.get("metrics") or {}).items()}
        rewards = {column_name(name): value for name, value in metrics.items()}
        if self.is_weighted_sum:
            rewards |= {column.name: metrics.get(column.function, 0.0) for column in self.columns}
        else:
            rewards = {name: value for name, value in rewards.items() if name != "reward"} | {"reward": reward}
        return {
            "reward": reward,
            "rewards": rewards,
            "metrics": metrics,
            "stop_condition": outcome.get("stop_condition"),
            "is_truncated": bool(outcome.get("is_truncated")),
            "prompt": [plain(message) for message in outcome["prompt"]],
            "completion": [plain(message) for message in outcome["completion"] or []],
        }

    def describe(self) -> Message:
        env = self.environment
        weights = {column.name: column.weight for column in self.columns if column.weight}
        return {
            "library": "verifiers 0.3.1",
            "kind": type(env).__name__,
            "bases": [base.__name__ for base in type(env).__mro__[:-2]],
            "system": self.system,
            "columns": weights if self.is_weighted_sum and weights else {"reward": 1.0},
            "group_columns": [column.name for column in self.columns if column.compares],
            "tools": [tool.model_dump() for tool in getattr(env, "tool_defs", None) or []],
            "max_turns": getattr(env, "max_turns", 1),
            "tasks": {split: len(rows) for split, rows in self.rows.items()},
        }


LIBRARY = RubricLibrary()
