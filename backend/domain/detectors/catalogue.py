"""Every detector by its id. How each looks is in `workers/detectors`, a module each of the same name."""

from collections.abc import Mapping
from dataclasses import replace

from backend.domain.detectors.rollout_detectors import OF_ROLLOUTS
from backend.domain.detectors.run_detectors import OF_RUNS
from backend.domain.detectors.spec import LEAST_SUSPICION, SUSPICION, Face


def _complete(face: Face) -> Face:
    """With the threshold that all have."""
    return replace(
        face,
        thresholds={**face.thresholds, SUSPICION: LEAST_SUSPICION},
        meaning={**face.meaning, SUSPICION: "The least suspicion, of 0 to 1, that is told as a flag."},
    )


FACES: Mapping[str, Face] = {face.id: _complete(face) for face in (*OF_RUNS, *OF_ROLLOUTS)}
