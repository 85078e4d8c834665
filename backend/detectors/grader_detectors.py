"""What is asked as a detector: a question in plain words, the reasoning monitor, the contrastive judge.

Each has a face like the built-in ones. It has no settings: it looks where somebody asks it, and what it flags waits
for a person.
"""

import uuid
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.detectors.spec import LOWEST_SUSPICION, SUSPICION, DetectorSpec
from backend.domain.graders.settings import DETECTOR_PREFIX, GraderKind, QuestionSettings
from backend.graders.flags import SOURCES
from backend.graders.tables import Grader

MAX_TITLE = 90
"""Characters of a question that name it; a page has the rest."""
_DELETED = " (deleted "
_TITLES = {GraderKind.MONITOR: "Reasoning monitor", GraderKind.CONTRAST: "Contrastive judge"}
_DESCRIPTIONS = {
    GraderKind.MONITOR: "The policy's reasoning states that it intends to exploit the task.",
    GraderKind.CONTRAST: "High-reward rollouts do something other than the task.",
}
_FORMULAS = {
    GraderKind.MONITOR: "a policy's suspicion about the reasoning",
    GraderKind.CONTRAST: "a policy's suspicion about a pattern that high-reward rollouts of one task share",
}


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One of those by which it looks."""

    id: uuid.UUID
    name: str
    policy: str
    flags: str
    """What raises a flag, in words."""
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A detector that is asked."""

    spec: DetectorSpec
    questions: Sequence[AskedQuestion]


def is_asked(detector: str) -> bool:
    return detector.startswith(DETECTOR_PREFIX) or detector in {
        kind.detector("") for kind in (GraderKind.MONITOR, GraderKind.CONTRAST)
    }


def detector_of(kind: GraderKind, name: str) -> str:
    """Under which id the flags of a question stand, and stay when it is deleted."""
    return kind.detector(named(name))


def named(name: str) -> str:
    """As it was before it was deleted."""
    return name.partition(_DELETED)[0]


def asked_detectors(session: Session, flagged: Container[str] = ()) -> dict[str, Asked]:
    """By id: everything that is there to raise flags, and what raised some though it is gone or never meant to."""
    statement = (
        select(Grader)
        .options(joinedload(Grader.policy))
        .where(Grader.kind != GraderKind.JUDGE)
        .order_by(Grader.created_at.desc(), Grader.id)
    )
    together: defaultdict[str, list[tuple[Grader, QuestionSettings]]] = defaultdict(list)
    for question in session.scalars(statement):
        configuration = QuestionSettings.model_validate(question.settings)
        detector = detector_of(question.kind, question.name)
        if detector in flagged or (question.deleted_at is None and _flags(configuration)):
            together[detector].append((question, configuration))
    return {detector: _asked(detector, found) for detector, found in sorted(together.items())}


def _asked(detector: str, found: Sequence[tuple[Grader, QuestionSettings]]) -> Asked:
    """Those that are still there come first, and the first names it."""
    found = sorted(found, key=lambda each: each[0].deleted_at is not None)
    questions = [
        AskedQuestion(
            question.id,
            named(question.name),
            question.policy.name,
            _flags(configuration) or "by hand",
            question.deleted_at is not None,
        )
        for question, configuration in found
    ]
    return Asked(_face(detector, [configuration for _, configuration in found]), questions)


def _face(detector: str, asked: Sequence[QuestionSettings]) -> DetectorSpec:
    kind = asked[0].kind
    is_own = kind is GraderKind.QUESTION
    about = "group of rollouts" if kind is GraderKind.CONTRAST else "rollout"
    formula = "the answer" if is_own else _FORMULAS[kind]
    return DetectorSpec(
        id=detector,
        title=_shortened(asked[0].text) if is_own else _TITLES[kind],
        description=f"A custom question; flags {_flags(asked[0]) or 'by hand'}." if is_own else _DESCRIPTIONS[kind],
        formula=f"{formula}: {_either(_flags(each) for each in asked)}; and a quote that appears in the rollout",
        source=SOURCES[kind],
        settings={}
        if is_own
        else {SUSPICION: replace(LOWEST_SUSPICION, default=min(each.flags_from for each in asked))},
        cost=f"one request per {about}",
    )


def _flags(asked: QuestionSettings) -> str:
    if asked.kind is GraderKind.QUESTION:
        return " or ".join(asked.flags)
    return f"from {asked.flags_from:g}"


def _either(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(each or "chosen by hand" for each in words))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1].rstrip()}…"
