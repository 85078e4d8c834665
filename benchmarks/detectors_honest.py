"""Detectors over stored training runs that nobody hacked: whatever they flag is wrong. Nothing is written."""

import os
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from sqlalchemy import select

from backend.db.models import Run
from backend.db.session import forget_engine, transaction
from backend.domain.vocabulary import RunKind
from backend.settings import get_settings
from workers.jobs.judged_rows import Judged, examinations_of, judged_run, stored_steps
from workers.judging.detectors.watch import Watch

MOST = 0.02
"""Share of rollouts that may be flagged."""
console = Console(soft_wrap=True)


@dataclass(slots=True)
class Accused:
    rollouts: int = 0
    flagged: set[uuid.UUID] = field(default_factory=set)
    by_detector: Counter[str] = field(default_factory=Counter)
    about_run: list[str] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)


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
    quiet = [_report(name, _accused(judged_run(run_id))) for run_id, name in runs]
    return all(quiet)


def _accused(judged: Judged) -> Accused:
    watch, found = Watch(judged.scene), Accused()
    examinations = examinations_of(judged.run_id)
    for step, rows in stored_steps(judged):
        found.rollouts += len(rows)
        for draft in watch.look(step, rows):
            if draft.rollout_id is None:
                found.about_run.append(f"step {step}, {draft.severity}: {draft.detector}: {draft.sentence}")
                continue
            found.flagged.add(draft.rollout_id)
            found.by_detector[draft.detector] += 1
            found.examples.setdefault(draft.detector, str(draft.evidence.get("excerpt"))[:120])
        while examinations and examinations[0].step <= step:
            watch.examined(examinations.pop(0))
    return found


def _report(name: str, found: Accused) -> bool:
    share = len(found.flagged) / max(found.rollouts, 1)
    console.print(
        f"{name}: {len(found.flagged)} of {found.rollouts:,} rollouts flagged ({share:.2%}; at most {MOST:.0%})"
    )
    for detector, count in found.by_detector.most_common():
        console.print(f"  {detector}: {count}, such as {found.examples[detector]!r}", markup=False)
    for line in found.about_run:
        console.print(f"  about the run: {line}", markup=False)
    return share <= MOST
