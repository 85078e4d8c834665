"""For verifiers 0.3.1: the same work as the package `one_turn` of this comparison."""

from difflib import SequenceMatcher
from typing import Any

import verifiers as vf
from datasets import Dataset


def lcs(parser: vf.Parser, completion: Any, answer: str, **kwargs: Any) -> float:
    return SequenceMatcher(None, parser.parse_answer(completion) or "", answer).ratio()


def load_environment(n: int) -> vf.Environment:
    rows = [{"question": f"abcde {index}", "answer": f"{index} edcba"} for index in range(n)]
    parser = vf.XMLParser(["reversed_text"], answer_field="reversed_text")
    rubric = vf.Rubric(funcs=[lcs, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
    dataset = Dataset.from_list(rows)
    return vf.SingleTurnEnv(dataset=dataset, system_prompt="Reverse the text.", parser=parser, rubric=rubric)
