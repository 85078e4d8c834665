"""All detectors: each module of `catalogue` declares one in `SPEC` and implements it in `find`.

`metamorphic`, which needs an env server, and `unseen_inputs`, which needs a sandbox, have no `find`.
"""

import importlib
import pkgutil
from collections.abc import Mapping

from backend.domain.detectors import catalogue
from backend.domain.detectors.run_view import Batch, RunView
from backend.domain.detectors.spec import Detector, DetectorSpec

_MODULES = [
    importlib.import_module(f"{catalogue.__name__}.{each.name}")
    for each in sorted(pkgutil.iter_modules(catalogue.__path__), key=lambda each: each.name)
]

RUN_DETECTORS: tuple[Detector[RunView], ...] = tuple(
    Detector(each.SPEC, each.find) for each in _MODULES if each.SPEC.subject == "run"
)
ROLLOUT_DETECTORS: tuple[Detector[Batch], ...] = tuple(
    Detector(each.SPEC, each.find) for each in _MODULES if each.SPEC.subject == "rollout" and hasattr(each, "find")
)
SPECS: Mapping[str, DetectorSpec] = {
    spec.id: spec
    for spec in sorted((module.SPEC for module in _MODULES), key=lambda spec: (spec.subject != "run", spec.id))
}
"""By id: detectors of runs, then detectors of rollouts, in alphabetical order."""
