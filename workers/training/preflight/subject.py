"""The policy that a pre-flight looks at."""

from dataclasses import dataclass
from typing import Any

from backend.domain.training.grpo import GrpoChoice
from workers.models.chat import ChatTokens
from workers.models.policy import LocalPolicy
from workers.training.hardware import Hardware


@dataclass(slots=True)
class Subject:
    """The policy as it would begin."""

    model: Any
    tokenizer: Any
    chat: ChatTokens
    hardware: Hardware

    def policy(self, choice: GrpoChoice) -> LocalPolicy:
        """It plays as in training."""
        policy = LocalPolicy(
            self.model, self.tokenizer, temperature=choice.temperature, top_p=choice.top_p, top_k=choice.top_k
        )
        policy.set_precision(is_bf16=self.hardware.is_bf16)
        return policy
