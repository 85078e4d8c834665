"""A reply that makes several tool calls: made in their order within one turn, and told as one step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.domain.environments.manifest import RewardColumn
from backend.domain.rollouts.rollout import Step, columns_over_episode


@dataclass(slots=True)
class Made:
    """An action that the environment took, or why (`note`) it did not."""

    action: dict[str, Any] | None
    is_made: bool = True
    """It reached the environment, and so cost a turn."""
    note: str | None = None
    observation: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """What the policy is told of it."""
    rewards: dict[str, float] = field(default_factory=dict)
    done: bool = False
    seconds: float = 0.0

    @property
    def told(self) -> str:
        return self.text or self.note or ""

    def as_json(self) -> dict[str, Any]:
        what = {"action": self.action, "is_made": self.is_made, "note": self.note, "text": self.text}
        return {**what, "rewards": self.rewards, "done": self.done}


def answers_in_words(made: Sequence[Made], name_field: str) -> str:
    """All answers as one text, for a policy that reads plain text."""
    told = []
    for number, each in enumerate(made, start=1):
        name = f" (`{each.action.get(name_field)}`)" if each.action else ""
        told.append(f"Call {number}{name}: {each.told}".rstrip())
    return "\n\n".join(told)


def step_of_calls(reply: str, made: Sequence[Made], columns: Iterable[RewardColumn]) -> Step:
    """The rewards are folded as the columns are over the episode, so that their sum stays what it is."""
    taken = [each for each in made if each.note is None]
    last = taken[-1] if taken else made[-1]
    return Step(
        reply=reply,
        action=next((each.action for each in made if each.action is not None), None),
        observation=last.observation,
        text="\n\n".join(each.told for each in made),
        rewards=_folded([each.rewards for each in taken], columns),
        done=last.done,
        note=" ".join(each.note for each in made if each.note) or None,
        environment_seconds=sum(each.seconds for each in made),
        calls=[each.as_json() for each in made],
    )


def _folded(rows: Sequence[dict[str, float]], columns: Iterable[RewardColumn]) -> dict[str, float]:
    sent = {name for row in rows for name in row}
    declared = columns_over_episode((column for column in columns if column.name in sent), rows)
    return declared | {name: sum(row.get(name, 0.0) for row in rows) for name in sorted(sent - declared.keys())}
