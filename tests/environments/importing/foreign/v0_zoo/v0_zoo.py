"""One small environment of every kind that `verifiers` 0.3 has; `kind` chooses."""

import verifiers as vf
from datasets import Dataset

SYSTEM = "You answer in <answer> tags."


def exact(parser, completion, answer) -> float:
    return float((parser.parse_answer(completion) or "").strip() == answer)


def shortness(completion, **everything) -> float:
    return 1.0 / (1 + len(completion[-1]["content"] or ""))


async def told_row(info, prompt) -> float:
    return info["row"] / 10 + len(prompt) / 100


def longest_of_the_group(completions, **everything) -> list[float]:
    lengths = [len(str(completion[-1]["content"])) for completion in completions]
    return [float(length == max(lengths)) for length in lengths]


def broken(completion) -> float:
    raise ValueError("this reward function always fails")


def rows(count: int = 6) -> Dataset:
    return Dataset.from_list(
        [{"question": f"What is {i} + {i}?", "answer": str(2 * i), "info": {"row": i}} for i in range(count)]
    )


class Guessing(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["guesses"] = []
        return state

    async def env_response(self, messages, state, **kwargs):
        guess = (self.parser.parse_answer([messages[-1]]) or "").strip()
        state["guesses"].append(guess)
        if guess == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        return [{"role": "user", "content": f"{guess or 'That'} is wrong, guess again."}]

    @vf.stop
    async def gave_up(self, state) -> bool:
        return "pass" in state.get("guesses", [])


def guesses(state) -> float:
    return len(state["guesses"]) / 10


def add(left: int, right: int) -> int:
    """Add two numbers.

    Args:
        left: The one.
        right: The other.
    """
    return left + right


class Purse(vf.StatefulToolEnv):
    """Its tool sees the state of the rollout, which the policy does not name."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.spend, args_to_skip=["purse"])

    async def setup_state(self, state, **kwargs):
        state["purse"] = {"coins": 10}
        return state

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "purse": state["purse"]}

    def spend(self, coins: int, purse: dict) -> str:
        """Spend coins.

        Args:
            coins: How many.
        """
        purse["coins"] -= coins
        return f"{purse['coins']} coins are left"


def coins_left(state) -> float:
    return float(state["purse"]["coins"])


def load_environment(kind: str = "single") -> vf.Environment:
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric(funcs=[exact, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
    common = {"dataset": rows(), "system_prompt": SYSTEM, "parser": parser}
    match kind:
        case "single":
            rubric.add_metric(shortness)
            return vf.SingleTurnEnv(rubric=rubric, **common)
        case "broken":
            return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[exact, broken], parser=parser), **common)
        case "turns":
            rubric.add_reward_func(guesses, weight=-0.5)
            return Guessing(rubric=rubric, max_turns=4, **common)
        case "tools":
            return vf.ToolEnv(tools=[add], max_turns=3, rubric=rubric, **common)
        case "stateful":
            rubric.add_reward_func(coins_left, weight=0.1)
            return Purse(rubric=rubric, max_turns=3, **common)
        case "group":
            rubric.add_reward_func(longest_of_the_group, weight=0.5)
            return vf.SingleTurnEnv(rubric=rubric, **common)
        case "rubrics":
            second = vf.Rubric(funcs=[told_row, shortness], weights=[0.25, 2.0], parser=parser)
            return vf.SingleTurnEnv(rubric=vf.RubricGroup([rubric, second]), **common)
    raise ValueError(kind)
