"""Every detector by its id. How each looks is in `workers/judging/detectors`, a module each of the same name."""

from collections.abc import Mapping

from backend.domain.detectors.face import Face
from backend.domain.detectors.of_rollouts import OF_ROLLOUTS
from backend.domain.detectors.of_runs import OF_RUNS

FACES: Mapping[str, Face] = {face.id: face for face in (*OF_RUNS, *OF_ROLLOUTS)}
