"""What a training run does when a detector of reward hacking flags something: a choice for each detector there is."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import Thresholds
from backend.domain.detectors.spec import Action, DetectorSpec, Subject
from backend.domain.training.blocks import Block

AS_SET = "as_set"
"""As the environment has it, else the detector's default."""
Wanted = Literal["as_set", "note", "screen", "pause", "stop_and_roll_back"]


class _Detecting(Block):
    """What happens when a detector of reward hacking flags something: as_set (as the environment has it, else the
    detector's default), note, screen (flagged rollouts stay out of the gradient until a person judged them), pause, or
    stop_and_roll_back (stop, with a branch from the last honest checkpoint prepared)."""

    start_branch: bool = False
    """After stop_and_roll_back the branch starts by itself. Otherwise it is prepared, and one click starts it: without
    a repaired reward a branch finds the same hack again."""
    thresholds: Thresholds = Field(default_factory=list)
    """Thresholds of detectors in this run, as `paid_exit.reward=0.6`, set apart by commas; over those of the
    environment. Every detector has `suspicion`, the least that is told as a flag; its page has the others."""

    def action_of(self, detector: str, otherwise: Action) -> Action:
        wanted = getattr(self, detector, AS_SET)
        return otherwise if wanted == AS_SET else Action(wanted)


def _field_of(spec: DetectorSpec) -> tuple[Any, Any]:
    of_run = " It flags runs: screen means repeats of the rollouts that it names." * (spec.subject is Subject.RUN)
    help_ = f"{spec.description} By default: {spec.action.replace('_', ' ')}.{of_run}"
    return Wanted, Field(default=AS_SET, description=help_)


if TYPE_CHECKING:

    class DetectorsChoice(_Detecting):
        """With a field for each detector of the catalogue, by its id."""

else:
    _FIELDS: Mapping[str, Any] = {spec.id: _field_of(spec) for spec in SPECS.values()}
    DetectorsChoice = create_model(
        "DetectorsChoice", __base__=_Detecting, __module__=__name__, __doc__=_Detecting.__doc__, **_FIELDS
    )
