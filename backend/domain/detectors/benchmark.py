"""The stored result of the detectors on one set of labeled rollouts: counts, from which all shares derive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from backend.domain.described import Described
from backend.domain.detectors.labeled import LabeledSplit, SourceResult
from backend.domain.statistics import Proportion, wilson

MAX_PROBLEMS = 20
"""Wrong records of a source that are kept with their reasons."""


class FamilyCount(Described):
    """Rollouts of one kind of hack, or of honest solution, and how many of them were flagged."""

    model_config = ConfigDict(extra="forbid")

    family: str = Field(max_length=120)
    is_hack: bool
    split: LabeledSplit
    """`development` if thresholds were chosen on it, else `test`."""
    total: int = Field(ge=0)
    flagged: int = Field(ge=0)
    """Flagged by any built-in detector."""
    by_detector: dict[str, int] = Field(default={}, max_length=200)
    """Flagged, by detector; plugins are named `plugin:NAME`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        counts = (self.flagged, *self.by_detector.values())
        if min(counts) < 0 or max(counts) > self.total:
            raise ValueError(f"{self.family}: between 0 and {self.total} rollouts can be flagged")
        return self


class PluginReport(Described):
    """How a plugin fared on a source."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=60)
    problem: str = Field("", max_length=500)
    """Why its flags do not count. Empty: they do."""
    cpu_seconds: float = Field(0.0, ge=0, allow_inf_nan=False)


class SourceBenchmark(Described):
    """Counts of one labeled source."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(pattern=r"^[a-z0-9][a-z0-9:_.-]{0,59}$")
    title: str = Field(max_length=300)
    url: str = Field("", max_length=300, pattern=r"^(https?://\S*)?$")
    commit: str = Field("", max_length=64)
    license: str = Field(max_length=200)
    families: list[FamilyCount] = Field(max_length=500)
    wrong_records: int = Field(0, ge=0)
    """Records that could not be read and were skipped."""
    problems: list[str] = Field([], max_length=MAX_PROBLEMS)
    """The reasons for the first of them."""
    cpu_seconds: float = Field(0.0, ge=0, allow_inf_nan=False)
    """CPU time of all built-in detectors together."""
    plugins: list[PluginReport] = Field([], max_length=20)
    proctor: str = Field(max_length=40)
    """Version whose detectors were measured."""

    @classmethod
    def of(cls, result: SourceResult, plugins: Iterable[PluginReport], proctor: str) -> SourceBenchmark:
        source = result.source
        families = [
            FamilyCount(
                family=family[:120],
                is_hack=is_hack,
                split=source.split_of(family),
                total=total,
                flagged=result.flagged[is_hack, family],
                by_detector={
                    name: counts[is_hack, family]
                    for name, counts in sorted(result.by_detector.items())
                    if counts[is_hack, family]
                },
            )
            for (is_hack, family), total in sorted(result.totals.items())
        ]
        return cls(
            source=source.id,
            title=source.title,
            url=source.url,
            commit=source.commit,
            license=source.license,
            families=families,
            wrong_records=result.wrong_records,
            problems=[each[:400] for each in result.problems[:MAX_PROBLEMS]],
            cpu_seconds=round(result.seconds, 3),
            plugins=list(plugins),
            proctor=proctor,
        )

    @property
    def splits(self) -> list[LabeledSplit]:
        return sorted({each.split for each in self.families})

    @property
    def total(self) -> int:
        return sum(each.total for each in self.families)


def flagged_share(
    benchmarks: Iterable[SourceBenchmark], *, is_hack: bool, split: LabeledSplit | None = None, detector: str = ""
) -> Proportion:
    """Return the recall on hacks, or the share of honest rollouts flagged, over all sources and families.

    By one detector, or by any built-in one; of one split, or of both. Wilson's 95% limits.
    """
    rows = [
        each
        for benchmark in benchmarks
        for each in benchmark.families
        if each.is_hack is is_hack and split in (None, each.split)
    ]
    found = sum(each.by_detector.get(detector, 0) if detector else each.flagged for each in rows)
    return wilson(found, sum(each.total for each in rows))
