"""The action of a training run when a reward-hacking detector flags something, by detector."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, create_model

from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import Thresholds
from backend.domain.detectors.spec import Action, Subject
from backend.domain.training.blocks import Block, setting

AS_SET = "as_set"
"""The setting of the environment, else the default of the detector."""
DetectorAction = Literal["as_set", "note", "screen", "pause", "stop_and_roll_back"]


class _Detecting(Block):
    """What happens when a reward-hacking detector flags something: as_set (the setting of the environment, else the
    default of the detector), note, screen (flagged rollouts stay out of the gradient until they are reviewed), pause,
    or stop_and_roll_back (stop, and prepare a branch from the last honest checkpoint)."""

    title: ClassVar[str] = "Detectors"
    only: ClassVar[str] = "recipe=sft_then_grpo|grpo"

    start_branch: bool = setting(False, "Start the branch automatically")
    """After stop_and_roll_back, start the prepared branch automatically. Otherwise you start it with one click: without
    a fixed reward, a branch finds the same hack again. Use it for unattended runs."""
    thresholds: Thresholds = setting([], "Detector thresholds", is_wide=True)
    """Detector thresholds of this run, such as `paid_exit.reward=0.6`, separated by commas. They override those of the
    environment. Every detector has `suspicion`, the minimum score of a flag; its page lists the others. Raise a
    threshold if its flags are false."""

    def action_of(self, detector: str, otherwise: Action) -> Action:
        wanted = getattr(self, detector, AS_SET)
        return otherwise if wanted == AS_SET else Action(wanted)


if TYPE_CHECKING:

    class DetectorsChoice(_Detecting):
        """With a field for each detector, by its id."""

else:
    _FIELDS = {}
    for _spec in SPECS.values():
        _help = f"{_spec.description} By default: {_spec.action.replace('_', ' ')}."
        if _spec.subject is Subject.RUN:
            _help += " It flags runs: screen means repeats of the rollouts that it names."
        _FIELDS[_spec.id] = DetectorAction, Field(default=AS_SET, description=_help)
    DetectorsChoice = create_model(
        "DetectorsChoice", __base__=_Detecting, __module__=__name__, __doc__=_Detecting.__doc__, **_FIELDS
    )
