"""Training on several environments at once: further environments with weights, in addition to the run's own."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from backend.domain.environments.manifest import Manifest, RewardColumn
from backend.domain.text import split_list
from backend.domain.training.blocks import Block, Name

MOST_ENVIRONMENTS = 16
_PART = re.compile(r"(?P<environment>[a-z][a-z0-9_]{0,39})(@(?P<version>\d{1,9}))?(=(?P<weight>[^=@]{1,30}))?")


class MixPart(Block):
    """One further environment, written as `name`, `name@3`, `name=0.5` or `name@3=0.5`."""

    environment: Name
    version: Annotated[int, Field(ge=1)] | None = None
    """Default: the latest when the run starts; the run then pins its number."""
    weight: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)
    """Number of its tasks per task of the run's own environment."""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _PART.fullmatch(value.strip())
        if match is None:
            raise ValueError(
                f"write an environment as name@version=weight, e.g. reverse_text@3=0.5, not {value[:60]!r}"
            )
        return {name: found for name, found in match.groupdict().items() if found is not None}

    @model_serializer
    def __str__(self) -> str:
        version = "" if self.version is None else f"@{self.version}"
        return f"{self.environment}{version}={self.weight:g}"


Mix = Annotated[list[MixPart], BeforeValidator(split_list), Field(max_length=MOST_ENVIRONMENTS - 1)]


def union_columns(manifests: Iterable[Manifest]) -> list[RewardColumn]:
    """The reward columns of all environments, in declared order. The first declaration counts.

    The reward of each rollout is the weighted sum of its own environment, whatever is listed.
    """
    columns: dict[str, RewardColumn] = {}
    for manifest in manifests:
        for column in manifest.columns:
            columns.setdefault(column.name, column)
    return list(columns.values())


def portions(weights: Sequence[float], count: int) -> list[int]:
    """Divide a count by weight into whole numbers: the largest remainders are rounded up, and each gets at least one if
    possible."""
    total = sum(weights)
    exact = [count * weight / total for weight in weights]
    given = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: (given[place] > 0, given[place] - exact[place], place))
    for place in by_remainder[: count - sum(given)]:
        given[place] += 1
    return given
