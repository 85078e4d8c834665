"""The package's own environment, loaded once, and its rollouts, which the library itself plays and scores."""

import asyncio
import importlib
import json
import math
import os
import re
import threading
from dataclasses import dataclass
from typing import Any

from verifiers.legacy.rubrics.rubric import Rubric
from verifiers.legacy.rubrics.rubric_group import RubricGroup

from .lines import Line, plain
from .policy import WirePolicy

MODEL = "policy"
_KEPT = ["trajectory_id"]
_WORD = re.compile(r"[^a-z0-9_]+")


@dataclass
class Column:
    """One function of the rubric."""

    name: str
    """As a column's name may be written."""
    function: str
    weight: float
    compares: bool
    """It scores a group of rollouts of the same task against one another."""


class Library:
    def __init__(self) -> None:
        module = importlib.import_module(os.environ["VERIFIERS_MODULE"])
        self.arguments = json.loads(os.environ.get("VERIFIERS_ARGUMENTS") or "{}")
        self.environment = module.load_environment(**self.arguments)
        self.rows = self._rows()
        self.columns, self.is_weighted_sum = _columns(self.environment.rubric)
        self.system = self._system()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="verifiers").start()

    def _rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by split. Without a separate evaluation set, the last fifth of the rows is held out."""
        train = self.environment.get_dataset() if self._has("dataset") else None
        heldout = self.environment.get_eval_dataset() if self._has("eval_dataset") or train is None else None
        if train is None:
            return {"train": heldout.to_list(), "heldout": heldout.to_list()}
        rows = train.to_list()
        if heldout is not None:
            return {"train": rows, "heldout": heldout.to_list()}
        held = max(1, len(rows) // 5) if len(rows) > 1 else 0
        return {"train": rows[: len(rows) - held], "heldout": rows[len(rows) - held :]}

    def _has(self, name: str) -> bool:
        env = self.environment
        return getattr(env, name, None) is not None or getattr(env, f"{name}_source", None) is not None

    def _system(self) -> str:
        """What every task begins with; a system message that differs from it is part of the task's own text."""
        found = {_system_of(row) for row in self.rows["train"][:50]}
        return found.pop() if len(found) == 1 else ""

    def row(self, split: str, index: int) -> dict[str, Any]:
        rows = self.rows["heldout" if split == "heldout" else "train"]
        return dict(rows[index % len(rows)])

    @staticmethod
    def answer(row: dict[str, Any]) -> str | None:
        """The one right answer, where the row has one."""
        return row["answer"] if isinstance(row.get("answer"), str) else None

    def start(self, row: dict[str, Any], lines: list[Line]) -> "asyncio.Future[Any]":
        """Let the library play the row once for every line."""
        return asyncio.run_coroutine_threadsafe(self._play(row, lines), self.loop)  # type: ignore[return-value]

    async def _play(self, row: dict[str, Any], lines: list[Line]) -> None:
        policy = WirePolicy()
        policy.free = list(lines)
        env = self.environment
        try:
            if len(lines) > 1 or env.requires_group_rollouts:
                outcomes = await env.run_group(
                    [dict(row) for _ in lines], policy, MODEL, {}, state_columns=["trajectory_id"]
                )
            else:
                outcomes = [await env.run_rollout(dict(row), policy, MODEL, {}, state_columns=["trajectory_id"])]
        except Exception as error:
            for line in lines:
                line.end(error)
            return
        for outcome in outcomes:
            policy.line_of(outcome["trajectory_id"]).end(self._result(outcome))

    def _result(self, outcome: dict[str, Any]) -> dict[str, Any] | BaseException:
        if outcome.get("error"):
            return RuntimeError(f"verifiers: {_told(outcome['error'])}")
        metrics = {name: float(value) for name, value in (outcome.get("metrics") or {}).items()}
        return {
            "reward": float(outcome["reward"]),
            "rewards": self._rewards(float(outcome["reward"]), metrics),
            "metrics": metrics,
            "stop_condition": outcome.get("stop_condition"),
            "is_truncated": bool(outcome.get("is_truncated")),
            "prompt": [plain(message) for message in outcome["prompt"]],
            "completion": [plain(message) for message in outcome["completion"] or []],
        }

    def _rewards(self, reward: float, metrics: dict[str, float]) -> dict[str, float]:
        columns = {column.name: metrics.get(column.function, 0.0) for column in self.columns}
        named = {_column_name(name): value for name, value in metrics.items()}
        if self.is_weighted_sum:
            return named | columns
        return {name: value for name, value in named.items() if name != "reward"} | {"reward": reward}

    def described(self) -> dict[str, Any]:
        """Facts for the author of the manifest."""
        env = self.environment
        weights = {column.name: column.weight for column in self.columns if column.weight}
        is_sum = self.is_weighted_sum and bool(weights)
        return {
            "library": "verifiers 0.3.1",
            "kind": type(env).__name__,
            "bases": [base.__name__ for base in type(env).__mro__[:-2]],
            "system": self.system,
            "columns": weights if is_sum else {"reward": 1.0},
            "group_columns": [column.name for column in self.columns if column.compares],
            "tools": [tool.model_dump() for tool in getattr(env, "tool_defs", None) or []],
            "max_turns": getattr(env, "max_turns", 1),
            "tasks": {split: len(rows) for split, rows in self.rows.items()},
        }


def _system_of(row: dict[str, Any]) -> str:
    prompt = row.get("prompt")
    if isinstance(prompt, list) and prompt and (first := plain(prompt[0])).get("role") == "system":
        content = first.get("content")
        return content if isinstance(content, str) else ""
    return ""


def _columns(rubric: Any) -> tuple[list[Column], bool]:
    """The rubric's functions; and whether the reward is their weighted sum, which a subclass may change."""
    leaves = _leaves(rubric)
    is_sum = all(
        type(leaf).score_rollout is Rubric.score_rollout and type(leaf).score_group is Rubric.score_group
        for leaf in leaves
    )
    weights: dict[str, float] = {}
    compares: set[str] = set()
    for leaf in leaves:
        for function, weight in zip(leaf._get_reward_funcs(), leaf._get_reward_weights(), strict=True):
            name = getattr(function, "__name__", repr(function))
            is_sum = is_sum and (name not in weights or weights[name] == weight)  # twice: their values are added up
            weights[name] = float(weight)
            if leaf._is_group_func(function):
                compares.add(name)
    names = {function: _column_name(function) for function in weights}
    is_sum = is_sum and len(set(names.values())) == len(names)
    is_sum = is_sum and all(math.isfinite(weight) for weight in weights.values())
    return [Column(names[key], key, weights[key], key in compares) for key in weights], is_sum


def _leaves(rubric: Any) -> list[Any]:
    if isinstance(rubric, RubricGroup):
        return [leaf for part in rubric.rubrics for leaf in _leaves(part)]
    return [rubric] if rubric is not None else []


def _column_name(function: str) -> str:
    name = _WORD.sub("_", function.lower()).strip("_") or "score"
    name = name if name[0].isalpha() else f"f_{name}"
    return name[:40] if name not in {"reward", "format", "length"} else f"{name}_score"


def _told(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("error_chain_str") or error.get("message") or error.get("error"))[:2000]
    return str(error)[:2000]
