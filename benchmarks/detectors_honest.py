"""Detectors over stored training runs that nobody hacked: whatever they flag is wrong. Nothing is written."""

import os
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from sqlalchemy import select

from backend.core.session import forget_engine, transaction
from backend.domain.detectors.flags import FlagDraft
from backend.domain.vocabulary import RunKind, Severity
from backend.runs.tables import Run
from backend.settings import get_settings
from workers.detectors.scanner import RunScanner
from workers.storage.detector_inputs import DetectorInput, heldout_results_of, load_detector_input, stored_steps

MOST = 0.02
"""Share of rollouts that may be flagged. About the run nothing graver than a note may be said."""
MOST_LINES = 5
console = Console(soft_wrap=True)


@dataclass(slots=True)
class Accused:
    rollouts: int = 0
    flagged: set[uuid.UUID] = field(default_factory=set)
    by_detector: Counter[str] = field(default_factory=Counter)
    about_run: list[FlagDraft] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return len(self.flagged) / max(self.rollouts, 1)

    @property
    def faults(self) -> list[str]:
        """Why it is not quiet: too many rollouts are flagged, or the run by more than a note."""
        grave = sorted({draft.detector for draft in self.about_run if draft.severity is not Severity.NOTE})
        too_many = [f"more than {MOST:.0%} of the rollouts"] if self.share > MOST else []
        return [*too_many, *(f"the run, by {detector}" for detector in grave)]


def look_at_databases(urls: Sequence[str]) -> bool:
    """Every training run of each database, with the thresholds as they are by default."""
    quiet = [_look_at(url) for url in urls]
    return all(quiet)


def _look_at(url: str) -> bool:
    os.environ["DATABASE_URL"] = url  # noqa: TID251 - settings are read from the environment
    forget_engine()
    get_settings.cache_clear()
    with transaction() as session:
        runs = session.execute(select(Run.id, Run.name).where(Run.kind == RunKind.TRAINING)).all()
    quiet = [_report(name, _accused(load_detector_input(run_id))) for run_id, name in runs]
    return all(quiet)


def _accused(judged: DetectorInput) -> Accused:
    watch, found = RunScanner(judged.context), Accused()
    examinations = heldout_results_of(judged.run_id)
    for step, rows in stored_steps(judged):
        found.rollouts += len(rows)
        for draft in watch.look(step, rows):
            if draft.rollout_id is None:
                found.about_run.append(replace(draft, training_step=step))
                continue
            found.flagged.add(draft.rollout_id)
            found.by_detector[draft.detector] += 1
            found.examples.setdefault(draft.detector, str(draft.evidence.get("excerpt"))[:120])
        while examinations and examinations[0].step <= step:
            watch.examined(examinations.pop(0))
    return found


def _report(name: str, found: Accused) -> bool:
    told = f"accused: {'; '.join(found.faults)}" if found.faults else "quiet"
    counts = f"{len(found.flagged)} of {found.rollouts:,} rollouts flagged ({found.share:.2%}; at most {MOST:.0%})"
    console.print(f"{name}: {counts}; {told}", markup=False)
    for detector, count in found.by_detector.most_common():
        console.print(f"  {detector}: {count}, such as {found.examples[detector]!r}", markup=False)
    for draft in found.about_run[:MOST_LINES]:
        line = f"step {draft.training_step}, {draft.severity}: {draft.detector}: {draft.sentence}"
        console.print(f"  about the run: {line}", markup=False)
    if len(found.about_run) > MOST_LINES:
        console.print(f"  about the run: {len(found.about_run) - MOST_LINES} more")
    return not found.faults
