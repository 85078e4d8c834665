"""The same answer to different questions, far more often than any other answer."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import orjson

from backend.domain.detectors.catalogue import FACES
from workers.judging.detectors.base import FlagDraft, Limits, rollout_detector
from workers.judging.detectors.marking import draft_about, fingerprint, paid, whole_reply
from workers.judging.detectors.scene import Scene
from workers.judging.detectors.view import RolloutRow


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    by_answer: defaultdict[str, dict[str, list[RolloutRow]]] = defaultdict(dict)
    for row in rows:
        if row.asked and row.replies:
            by_answer[_answer(row)].setdefault(row.asked[-1], []).append(row)
    if len(by_answer) < limits["answers"]:
        return []
    counts = Counter({answer: len(questions) for answer, questions in by_answer.items()})
    questions = len({question for each in by_answer.values() for question in each})
    [(answer, first), (_, second)] = counts.most_common(2)
    share = first / questions
    if first < limits["fewest"] or share < limits["share"] or first < limits["times_second"] * second:
        return []
    alike = [row for group in by_answer[answer].values() for row in group]
    earning = paid(rows, scene)
    said = f"The same answer to {first} of {questions} different questions; the next one was given to {second}."
    return [_draft(row, answer, said, share, str(row.id) in earning) for row in alike]


def _answer(row: RolloutRow) -> str:
    """The last action; a reply that was not understood stands for itself."""
    action = row.actions[-1] if row.actions else None
    if action is None:
        return row.replies[-1].strip()
    return orjson.dumps(action, option=orjson.OPT_SORT_KEYS, default=str).decode("utf-8", "replace")


def _draft(row: RolloutRow, answer: str, said: str, share: float, pays: bool) -> FlagDraft:
    return draft_about(
        FACE,
        row,
        score=(0.6 if pays else 0.5) + share,
        sentence=said,
        marks=whole_reply(row, len(row.replies) - 1),
        cluster=f"always {answer[:80]} {fingerprint(answer)}",
    )


FACE = FACES["constant_answer"]
DETECTOR = rollout_detector("constant_answer", look_at)
