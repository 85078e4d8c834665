import re
from typing import Literal

import verifiers.v1 as vf

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class SumData(vf.TaskData):
    answer: str


class Spent(vf.State):
    coins: int = 0


class Purse(vf.Toolset[vf.ToolsetConfig, Spent]):
    @vf.tool
    async def spend(self, coins: int) -> str:
        """Spend coins."""
        self.state.coins += coins
        return f"{self.state.coins} coins are spent"


class SumTaskConfig(vf.TaskConfig):
    kind: Literal["single", "turns", "tools"] = "single"
    purse: vf.ToolsetConfig = vf.ToolsetConfig()


class SumTask(vf.Task[SumData, Spent, SumTaskConfig]):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= {"single": 1, "turns": 3, "tools": 3}[self.config.kind]

    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        found = _ANSWER.search(trace.last_reply)
        return float(bool(found) and found.group(1).strip() == self.data.answer)

    @vf.reward(weight=0.2)
    async def format(self, trace: vf.Trace) -> float:
        replies = [message.content or "" for message in trace.assistant_messages]
        return sum(bool(_ANSWER.search(reply)) for reply in replies) / max(1, len(replies))

    @vf.reward(weight=-0.1)
    async def price(self, trace: vf.Trace) -> dict[str, float]:
        return {"coins": float(trace.state.coins), "turns": float(trace.num_turns)}

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))

    @classmethod
    def toolsets(cls, config: SumTaskConfig) -> list[vf.Toolset]:
        return [Purse(config.purse)] if config.kind == "tools" else []


class SumTasksetConfig(vf.TasksetConfig):
    count: int = 6
    task: SumTaskConfig = SumTaskConfig()


class SumTaskset(vf.Taskset[SumTask, SumTasksetConfig]):
    def load(self):
        is_opened = self.config.task.kind == "turns"
        for i in range(self.config.count):
            prompt = None if is_opened else f"What is {i} + {i}?"
            data = SumData(prompt=prompt, system_prompt="You answer in tags.", answer=str(2 * i))
            yield SumTask(data, self.config.task)


class SumEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        if task.config.kind != "turns":
            await agents.agent.run(task)
            return
        async with agents.agent.interaction(task) as interaction:
            half = int(task.data.answer) // 2
            segment = await interaction.turn(f"What is {half} + {half}?")
            while not segment.terminated and f"<answer>{task.data.answer}</answer>" not in segment.last_reply:
                segment = await interaction.turn("Wrong, again.")


if __name__ == "__main__":  # the library starts a tool server as a module
    Purse.run()
