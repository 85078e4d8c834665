"""Confirmed patterns of a training run, searches for their onset, and the last honest checkpoint."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.detectors.tables import Flag
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Need, Subject
from backend.domain.studies.onset import Outcome
from backend.domain.vocabulary import Phase, RunKind, Verdict
from backend.review.judged_curves import judgements_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.studies import queries as studies
from backend.studies.queries import checkpoints_until, start_of
from backend.studies.tables import OnsetSample, OnsetSearch

RIGHT = frozenset({Verdict.HACK, Verdict.BROKEN_REWARD})
"""Verdicts that confirm a pattern."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a detector flags, or one cluster of it, with what people said of it in the run."""

    detector: str
    cluster: str | None
    """None: all clusters of the detector."""
    flagged: int
    confirmed: int
    """Of these, judged a hack or a broken reward."""
    first_step: int
    """Of those that were confirmed."""
    middle_step: int
    version_id: uuid.UUID
    """Of the environment that most of the confirmed ones played."""
    obstacle: str = ""
    """Why its onset cannot be searched for; empty: it can."""

    @property
    def title(self) -> str:
        spec = SPECS.get(self.detector)
        name = spec.title if spec else self.detector
        return f"{name}: {self.cluster}" if self.cluster else name


@dataclass(frozen=True, slots=True)
class OnsetMark:
    """Where a chart shows an onset."""

    low: int
    """Step of the last checkpoint that does not exceed the base rate."""
    high: int
    label: str

    def as_json(self) -> dict[str, int | str]:
        return {"from": self.low, "to": self.high, "label": self.label}


@dataclass(frozen=True, slots=True)
class _Seen:
    """A confirmed rollout."""

    step: int
    version_id: uuid.UUID


def get_training(session: Session, run_id: uuid.UUID) -> Run:
    """Raises NotFound for other kinds: they have no checkpoints."""
    return studies.get_run(session, run_id, RunKind.TRAINING)


def patterns_of(session: Session, run: Run) -> list[Pattern]:
    """Each detector with a confirmed rollout, and each of its clusters with one; the most confirmed first."""
    judged = judgements_of(session, run.id)
    confirmed = {rollout_id for rollout_id, judgement in judged.items() if judgement.verdict in RIGHT}
    if not confirmed:
        return []
    seen: defaultdict[tuple[str, str | None], list[_Seen]] = defaultdict(list)
    for row in session.execute(_flags_on(run, confirmed)):
        found = _Seen(row.training_step or 0, row.version_id)
        for cluster in {None, row.cluster}:
            seen[row.detector, cluster].append(found)
    counts = _flag_counts(session, run)
    patterns = [_pattern(detector, cluster, found, counts) for (detector, cluster), found in seen.items()]
    return sorted(patterns, key=lambda each: (-each.confirmed, each.detector, each.cluster or ""))


def _flags_on(run: Run, rollout_ids: Collection[uuid.UUID]) -> Select[str, str | None, int | None, uuid.UUID]:
    return (
        select(Flag.detector, Flag.cluster, Rollout.training_step, Task.version_id)
        .join(Rollout, Rollout.id == Flag.rollout_id)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Flag.run_id == run.id, Flag.rollout_id.in_(rollout_ids))
    )


def _flag_counts(session: Session, run: Run) -> Counter[tuple[str, str | None]]:
    """Flagged rollouts by detector and by cluster. A detector flags a rollout once."""
    statement = select(Flag.detector, Flag.cluster, func.count()).where(
        Flag.run_id == run.id, Flag.rollout_id.is_not(None)
    )
    found: Counter[tuple[str, str | None]] = Counter()
    for detector, cluster, count in session.execute(statement.group_by(Flag.detector, Flag.cluster)):
        for key in {None, cluster}:
            found[detector, key] += count
    return found


def _pattern(
    detector: str, cluster: str | None, confirmed: Sequence[_Seen], counts: Mapping[tuple[str, str | None], int]
) -> Pattern:
    steps = [each.step for each in confirmed]
    versions = [each.version_id for each in confirmed]
    return Pattern(
        detector=detector,
        cluster=cluster,
        flagged=counts[detector, cluster],
        confirmed=len(confirmed),
        first_step=min(steps),
        middle_step=median_low(steps),
        version_id=max(versions, key=versions.count),
        obstacle=obstacle_to(detector),
    )


def obstacle_to(detector: str) -> str:
    """Why this detector cannot look at sampled rollouts by itself; empty: it can."""
    spec = SPECS.get(detector)
    if spec is None:
        return "A judge found it: it would have to be asked about every sampled rollout."
    if spec.subject is Subject.RUN:
        return "This detector looks at curves, not at rollouts: search for a pattern of rollouts that shows the same."
    if Need.REPLAY in spec.needs:
        return "This detector replays altered replies: it looks on demand only."
    return ""


def find_pattern(session: Session, run: Run, detector: str, cluster: str | None) -> Pattern | None:
    wanted = detector, cluster
    return next((each for each in patterns_of(session, run) if (each.detector, each.cluster) == wanted), None)


def searches_of(session: Session, run_id: uuid.UUID) -> Sequence[OnsetSearch]:
    """Newest first."""
    return studies.studies_of(session, OnsetSearch, run_id)


def get_search(session: Session, run_id: uuid.UUID, search_id: uuid.UUID) -> OnsetSearch:
    return studies.get_study(session, OnsetSearch, run_id, search_id)


def samples_of(session: Session, search_ids: Collection[uuid.UUID]) -> Mapping[uuid.UUID, list[OnsetSample]]:
    """By search, in the order of training, the starting policy first; each with its evaluation."""
    return studies.studied_by(session, OnsetSample, OnsetSample.search_id, search_ids)


def known_onsets(session: Session, run_id: uuid.UUID) -> list[OnsetSearch]:
    """Of each pattern the newest search that found one; the earliest onset first."""
    statement = select(OnsetSearch).where(OnsetSearch.run_id == run_id, OnsetSearch.hacking_step.is_not(None))
    newest: dict[tuple[str, str | None], OnsetSearch] = {}
    for search in session.scalars(statement.order_by(OnsetSearch.id)):
        newest[search.detector, search.cluster] = search
    return sorted(newest.values(), key=lambda each: (each.hacking_step or 0, each.id))


def marks_of(session: Session, run_id: uuid.UUID) -> list[OnsetMark]:
    """Of a training run's charts."""
    return [
        OnsetMark(each.honest_step or 0, each.hacking_step, f"onset: {pattern_name(each.detector, each.cluster)}")
        for each in known_onsets(session, run_id)
        if each.hacking_step is not None
    ]


def pattern_name(detector: str, cluster: str | None) -> str:
    spec = SPECS.get(detector)
    name = spec.title if spec else detector
    return f"{name} ({cluster})" if cluster else name


def last_honest_checkpoint(session: Session, run: Run, *, detector: str | None = None) -> Checkpoint | None:
    """The newest checkpoint of a training run, with its weights, before the first sign of a hack.

    That is the earliest known onset; of what was confirmed and has none, the first rollout that people judged a hack
    or a broken reward; where nobody judged anything, the first rollout that was flagged, by `detector` if one is
    named. Weights that played a hack are not honest: the checkpoint of step c plays step c + 1. The policy that
    reinforcement began with, where no checkpoint is before; None where its weights are gone too, or nothing is known.
    """
    ends = [step for step in (_before_onsets(session, run), _before_signs(session, run, detector)) if step is not None]
    if not ends:
        return None
    before = checkpoints_until(session, run.id, min(ends))
    return before[-1] if before else start_of(session, run)


def _before_onsets(session: Session, run: Run) -> int | None:
    """The step of the last checkpoint that may count as honest."""
    known = [search.honest_step or 0 for search in known_onsets(session, run.id)]
    return min(known, default=None)


def _before_signs(session: Session, run: Run, detector: str | None) -> int | None:
    judged = judgements_of(session, run.id)
    confirmed = {rollout_id for rollout_id, judgement in judged.items() if judgement.verdict in RIGHT}
    if confirmed:
        first = _first_step(session, run, confirmed - _explained(session, run))
    else:
        honest = {rollout_id for rollout_id, judgement in judged.items() if judgement.verdict is Verdict.HONEST}
        first = _first_flag(session, run, detector, honest)
    return None if first is None else max(0, first - 2)


def _explained(session: Session, run: Run) -> set[uuid.UUID]:
    """Rollouts of patterns whose onset is known: single ones before it are the base rate."""
    found: set[uuid.UUID] = set()
    for search in known_onsets(session, run.id):
        statement = select(Flag.rollout_id).where(Flag.run_id == run.id, Flag.detector == search.detector)
        if search.cluster is not None:
            statement = statement.where(Flag.cluster == search.cluster)
        found |= {rollout_id for rollout_id in session.scalars(statement) if rollout_id}
    return found


def _first_step(session: Session, run: Run, rollout_ids: Iterable[uuid.UUID]) -> int | None:
    of_training = Rollout.run_id == run.id, Rollout.phase == Phase.TRAIN
    return session.scalar(select(func.min(Rollout.training_step)).where(*of_training, Rollout.id.in_(rollout_ids)))


def _first_flag(session: Session, run: Run, detector: str | None, honest: Collection[uuid.UUID]) -> int | None:
    if known_onsets(session, run.id):
        return None
    statement = select(func.min(Flag.training_step)).where(Flag.run_id == run.id)
    if detector is not None:
        statement = statement.where(Flag.detector == detector)
    if honest:
        statement = statement.where(Flag.rollout_id.is_(None) | Flag.rollout_id.not_in(honest))
    return session.scalar(statement)


def found_words(search: OnsetSearch) -> str:
    """What a search found, in a line."""
    match search.outcome:
        case Outcome.FOUND:
            return f"between step {search.honest_step} and step {search.hacking_step}"
        case Outcome.AT_THE_FIRST:
            return f"before the first checkpoint, of step {search.hacking_step}"
        case Outcome.NOT_SEEN:
            return "not seen in any sampled checkpoint"
        case None:
            return "not known yet"
