"""Requirements of a job that not every worker of its queue meets."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from backend.domain.checkpoints.exports import CONVERTER, QUANTISER
from backend.domain.runs.capabilities import NEEDS, OnlineWorker, Requirement
from backend.domain.training.adapter import AdapterKind, AdapterRecord
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import ExportForm


def of_training(configuration: TrainingConfiguration) -> list[Requirement]:
    found = [need for (field, value), need in NEEDS.items() if attrgetter(field)(configuration) == value]
    nodes, count = configuration.hardware.nodes, configuration.hardware.processes_per_node
    if nodes > 1:
        found.append(Requirement(f"{nodes} nodes", lambda offer: offer.can.nodes >= nodes))
    if count > 1 and configuration.hardware.device != "cpu":
        found.append(Requirement(f"{count} GPUs", lambda offer: not offer.can.has_cuda or offer.can.gpu_count >= count))
    return found


def of_weights(adapter: Mapping[str, Any] | None, form: ExportForm | None = None) -> list[Requirement]:
    """The requirements of jobs that load a checkpoint, or export it in a form.

    `adapter`: its record, or None for full weights.
    """
    record = AdapterRecord.model_validate(adapter) if adapter is not None else None
    engines = [QUANTISER] if record and record.kind is AdapterKind.QLORA else []
    engines += [CONVERTER] if form is ExportForm.GGUF else []
    return [_installed(engine) for engine in engines]


def able(requirements: Sequence[Requirement], offers: Iterable[OnlineWorker], queue: str) -> list[str]:
    """Return the names of the workers of the queue that meet all requirements."""
    return [
        offer.name for offer in offers if queue in offer.queues and all(each.is_met(offer) for each in requirements)
    ]


def _installed(engine: str) -> Requirement:
    return Requirement(engine, lambda offer: engine in offer.can.engines)
