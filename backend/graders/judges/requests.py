"""What is asked of judges: the form and the JSON body by which one is added or changed, and where one shall look."""

import json
import uuid
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints

from backend.domain.graders.judges import DEFAULT_INSTRUCTION, Controls, Criterion, JudgeConfiguration, Scale, Target
from backend.graders.requests import InquiryRequest, WorkRequest

_DEFAULTS = JudgeConfiguration()
_CONTROLS = Controls()
Words = Annotated[str, StringConstraints(strip_whitespace=True, max_length=20_000)]


def _criteria(value: object) -> object:
    """A form has a criterion a line: `name, weight: what it asks`. JSON has a list of objects."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    if not isinstance(value, str):
        return value
    if value.strip().startswith("["):
        return json.loads(value)
    return [_criterion(line) for line in value.splitlines() if line.strip()]


def _criterion(line: str) -> dict[str, Any]:
    head, colon, description = line.partition(":")
    name, _, weight = head.partition(",")
    if not colon or not description.strip():
        raise ValueError(f"Write `name, weight: what it asks`, not `{line.strip()[:60]}`")
    return {"name": name.strip(), "weight": weight.strip() or 1.0, "description": description.strip()}


class JudgeRequest(InquiryRequest):
    """A judge to add, or what one shall be from now on. Its score is the column `judge.<name>`."""

    instruction: Words = DEFAULT_INSTRUCTION
    system: Words = ""
    target: Target = Target.ANSWER
    scale: Scale = Scale.UNIT
    criteria: Annotated[list[Criterion], BeforeValidator(_criteria)] = Field(default=[], max_length=12)
    """Of a rubric: `[{name, weight, description}]`."""
    fold_lowest: bool = False
    """Steps: the lowest score counts instead of the mean."""
    repeats: int = Field(default=_DEFAULTS.repeats, ge=1, le=10)
    shows_reference: bool = False
    control_prompt: Words = _CONTROLS.prompt
    control_good: Words = _CONTROLS.good
    control_bad: Words = _CONTROLS.bad

    def configuration(self) -> JudgeConfiguration:
        """Raises ValidationError."""
        controls = Controls(prompt=self.control_prompt, good=self.control_good, bad=self.control_bad)
        mine = {"name", "policy_id", "fold_lowest", "criteria", "control_prompt", "control_good", "control_bad"}
        return JudgeConfiguration(
            **self.model_dump(exclude=mine),
            criteria=tuple(self.criteria) if self.scale is Scale.RUBRIC else (),
            fold="lowest" if self.fold_lowest else "mean",
            controls=controls,
        )


class JudgingRequest(WorkRequest):
    """Let a judge look at a run's rollouts."""

    judge_id: uuid.UUID


class AskRequest(BaseModel):
    """Try a judge on one rollout; nothing of it is stored as a judgement."""

    rollout_id: uuid.UUID


def criteria_as_text(configuration: JudgeConfiguration) -> str:
    """As the form has them."""
    return "\n".join(f"{c.name}, {c.weight:g}: {c.description}" for c in configuration.criteria)
