"""For verifiers 0.3.1: the same work as the package `five_turns` of this comparison."""

from typing import Any

import verifiers as vf
from datasets import Dataset

MOVES = 5


class FiveTurns(vf.MultiTurnEnv):
    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state["moves"] = 0
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["moves"] += 1
        return [{"role": "user", "content": f"turn {state['moves']}: your move"}]


def moves(state: Any, **kwargs: Any) -> float:
    return float(state["moves"] + 1) / MOVES


def load_environment(n: int) -> vf.Environment:
    rows = [{"question": f"game {index}: your move"} for index in range(n)]
    parser = vf.XMLParser(["move"], answer_field="move")
    rubric = vf.Rubric(funcs=[moves, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
    dataset = Dataset.from_list(rows)
    return FiveTurns(dataset=dataset, system_prompt="Play.", parser=parser, rubric=rubric, max_turns=MOVES)
