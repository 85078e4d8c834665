"""Before a step is learned: which of its rollouts are suspected of a hack, and stay out of the gradient until a person
judged them.

Detectors of rollouts whose action is `screen` look at the step itself. What others flagged before (detectors of runs,
and looks on demand) is known by its flags: an episode that repeats one of those rollouts reply by reply is kept out.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from backend.core.session import transaction
from backend.domain.detectors.flags import FlagDraft
from backend.domain.detectors.registry import ROLLOUT_DETECTORS
from backend.domain.detectors.run_view import RolloutRow, row_of
from backend.domain.detectors.spec import Action
from backend.domain.notifications.notices import MOST_EXAMPLES
from backend.domain.rollouts.rollout import Rollout
from workers.detectors.scanner import RunScanner
from workers.storage.interventions import ScreenedRollouts, flagged_by, title_of
from workers.storage.rollouts import rollout_id
from workers.training.grpo.stage import SCREENED
from workers.training.verdicts import Deed, Deeds, Verdicts

_LOOKS_AHEAD = frozenset(each.id for each in ROLLOUT_DETECTORS)
Environments = Mapping[uuid.UUID | None, str]
"""Names by what the tasks of each environment carry."""
Actions = Callable[[], Mapping[str, Action]]
"""What follows from each detector's flags in the step under way."""


class Screening:
    """Of one attempt at GRPO: knows one step at a time."""

    def __init__(
        self,
        run_id: uuid.UUID,
        scanner: RunScanner,
        verdicts: Verdicts,
        actions: Actions,
        environments: Environments | None = None,
    ) -> None:
        """`environments`: of a run that plays several."""
        self._environments = environments or {}
        self._run_id, self._scanner, self._verdicts, self._actions = run_id, scanner, verdicts, actions
        self._deeds = Deeds()
        self._begin(0)

    def _begin(self, step: int) -> None:
        self._step = step
        self._by: frozenset[str] = frozenset()
        self._ahead: dict[tuple[str, str], FlagDraft] = {}
        self._because: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
        self._named: dict[Deed, set[str]] = {}

    def screened(self, step: int, rollouts: Sequence[Rollout]) -> set[int]:
        """Places of what is flagged, unless it repeats what was judged honest. Called again for the same step when
        groups gave place to others: who was flagged once in it stays so."""
        if step != self._step:
            self._begin(step)
            self._take_actions()
        ids = [rollout_id(self._run_id, rollout) for rollout in rollouts]
        self._look_ahead(ids, rollouts)
        self._look_back(ids, rollouts)
        flagged = {place for place, id_ in enumerate(ids) if id_ in self._because}
        return flagged - self._verdicts.honest(rollouts) if flagged else flagged

    def rows(self, ids: Sequence[uuid.UUID], rollouts: Sequence[Rollout]) -> list[RolloutRow]:
        """What detectors see of those that completed."""
        names = (self._environments.get(rollout.task.version_id, "") for rollout in rollouts)
        rows = [row_of(*each) for each in zip(ids, rollouts, names, strict=True)]
        return [row for row in rows if row is not None]

    def look(self, step: int, rows: Sequence[RolloutRow]) -> list[FlagDraft]:
        """All flags of the step, after it was learned."""
        if step != self._step:
            self._begin(step)
        return self._scanner.scan(step, rows, list(self._ahead.values()), self._by)

    def told(self, rollouts: Sequence[Rollout], drafts: Sequence[FlagDraft]) -> list[ScreenedRollouts]:
        """By detector, what the step kept out of the gradient; and what detectors of runs flagged, whose rollouts are
        kept out when they are repeated."""
        ids = [rollout_id(self._run_id, rollout) for rollout in rollouts if SCREENED in rollout.metrics]
        kept: defaultdict[str, list[uuid.UUID]] = defaultdict(list)
        for id_ in ids:
            for detector in self._because[id_]:
                kept[detector].append(id_)
        told = {name: self._screened(name, of_it, len(rollouts)) for name, of_it in kept.items()}
        actions = self._actions()
        for draft in drafts:
            if draft.rollout_id is None and actions.get(draft.detector) is Action.SCREEN:
                told[draft.detector] = _with_flag(told.get(draft.detector), draft)
        return list(told.values())

    def _screened(self, detector: str, ids: Sequence[uuid.UUID], of: int) -> ScreenedRollouts:
        draft = self._ahead.get((detector, str(ids[0])))
        seen = draft.sentence if draft else "It repeats, reply by reply, an episode that was flagged before."
        return ScreenedRollouts(detector, len(ids), f"{len(ids)} of {of} rollouts.", tuple(ids[:MOST_EXAMPLES]), seen)

    def _take_actions(self) -> None:
        screening = {name for name, action in self._actions().items() if action is Action.SCREEN}
        self._by = frozenset(screening & _LOOKS_AHEAD)
        before = flagged_by(self._run_id, screening - _LOOKS_AHEAD, before_step=self._step)
        if not before:
            return
        with transaction() as session:
            for id_, detectors in before.items():
                for deed in self._deeds.of(session, {id_}):
                    self._named.setdefault(deed, set()).update(detectors)

    def _look_ahead(self, ids: Sequence[uuid.UUID], rollouts: Sequence[Rollout]) -> None:
        for draft in self._scanner.scan_ahead(self.rows(ids, rollouts), self._by):
            self._ahead.setdefault((draft.detector, draft.key), draft)
            if draft.rollout_id is not None:
                self._because[draft.rollout_id].add(draft.detector)

    def _look_back(self, ids: Sequence[uuid.UUID], rollouts: Sequence[Rollout]) -> None:
        for place in self._verdicts.places(rollouts, set(self._named)):
            self._because[ids[place]].update(self._named[self._verdicts.deed_of(rollouts[place])])


def _with_flag(kept: ScreenedRollouts | None, draft: FlagDraft) -> ScreenedRollouts:
    """What a detector of runs flagged, beside what it kept out of this step by what it flagged before."""
    ids = [uuid.UUID(each) for each in draft.evidence.get("rollouts") or ()]
    named, examples = len(ids), tuple(ids[:MOST_EXAMPLES])
    leads_to = f"Repeats of the {named} rollouts that it names are kept out." if named else "It names none to keep out."
    flagged = f"{title_of(draft.detector)}: {draft.sentence} {leads_to}"
    if kept is None:
        return ScreenedRollouts(draft.detector, 0, flagged, examples)
    return replace(kept, sentence=f"{kept.sentence} {flagged}")
