"""On-policy distillation: its settings, and what a token earns."""

import uuid
from collections.abc import Sequence
from typing import ClassVar, Literal

from backend.domain.training.blocks import Block, setting


# Agarwal et al. 2023, arXiv:2306.13649; Lu and Thinking Machines Lab 2025, "On-Policy Distillation".
class DistillationChoice(Block):
    """The student plays, and a teacher scores each of its tokens. The student learns to be as likely as the teacher."""

    title: ClassVar[str] = "Teacher"
    only: ClassVar[str] = "recipe=distillation"

    teacher: Literal["checkpoint", "base", "endpoint"] = setting("checkpoint", "Teacher", is_basic=True)
    """checkpoint: weights of an earlier run. base: a Hugging Face model or a folder on the worker. endpoint: a policy
    with an endpoint that returns the log-probabilities of a prompt, such as vLLM; use it if the teacher does not fit
    into the worker's memory. The teacher must have the student's vocabulary."""
    checkpoint: uuid.UUID | None = setting(
        None,
        "Teacher's checkpoint",
        is_basic=True,
        only="distillation.teacher=checkpoint",
        is_wide=True,
        chosen_from="checkpoints",
    )
    """Checkpoint that scores the student's tokens. Choose one that plays better than the student."""
    base: str = setting(
        "", "Teacher's name or folder", is_basic=True, only="distillation.teacher=base", is_wide=True, max_length=300
    )
    """Hugging Face name or folder of the teacher. Choose a larger model of the student's family, which has the same
    vocabulary."""
    endpoint: str = setting(
        "", "Teacher's policy", is_basic=True, only="distillation.teacher=endpoint", is_wide=True, max_length=100
    )
    """Name of a policy with an endpoint. Its server must offer `/completions` with `echo` and `logprobs`; use vLLM if
    yours does not."""
    clip: float = setting(5.0, "Largest advantage", gt=0, le=100)
    """Maximum that one token may earn or lose, in nats. Lower it if single tokens that the teacher finds impossible
    make the gradient norm jump."""

    @property
    def described(self) -> str:
        """The teacher in a sentence."""
        named = {
            "base": self.base,
            "endpoint": f"endpoint {self.endpoint}",
            "checkpoint": f"checkpoint {self.checkpoint}",
        }
        return named[self.teacher]

    def problem(self) -> str | None:
        """Return a sentence if the teacher is not named."""
        given = {"checkpoint": self.checkpoint, "base": self.base.strip(), "endpoint": self.endpoint.strip()}
        return None if given[self.teacher] else f"Name the teacher (distillation.{self.teacher})."


def teacher_advantages(
    student: Sequence[float], teacher: Sequence[float], mask: Sequence[int], clip: float
) -> list[float]:
    """Return log π_teacher − log π_student of each of the policy's tokens, clipped, and 0 for other tokens.

    Its mean over tokens that the student sampled is the negative reverse KL divergence. With these advantages, the
    policy gradient is that of the reverse KL of each token, given the tokens before it.
    """
    return [
        max(-clip, min(clip, ours - own)) if counts else 0.0
        for own, ours, counts in zip(student, teacher, mask, strict=True)
    ]


def reverse_kl(student: Sequence[float], teacher: Sequence[float], mask: Sequence[int]) -> float:
    """Return the mean of log π_student − log π_teacher over the policy's tokens, in nats."""
    gaps = [own - ours for own, ours, counts in zip(student, teacher, mask, strict=True) if counts]
    return sum(gaps) / len(gaps) if gaps else 0.0
