"""Adapters (LoRA): made beside a base, saved without it, read beside the same base in the same precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from backend.domain.training.adapter import AdapterChoice, AdapterKind, AdapterRecord, Quantisation
from workers.models.bases import Source, base_of
from workers.models.padding import find_padding
from workers.models.read import OWN, ModelUnusable, Precision, read_model, read_tokenizer

NAME = "default"
RECORD_FILE = "base.json"
CONFIGURATION_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a base is called, and what pins it."""

    base: str
    revision: str | None
    artifact: str | None = None


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIGURATION_FILE).exists()


def new_adapter(source: Source, origin: Origin, choice: AdapterChoice, *, seed: int) -> tuple[PeftModel, Any]:
    """A base with an adapter that does not change it yet."""
    base = _read_base(source, choice)
    tokenizer = read_tokenizer(source.name, revision=source.revision, is_local=source.is_local)
    find_padding(base, tokenizer)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _attached(base, choice)
    remember(
        model,
        AdapterRecord(
            base=origin.base,
            artifact=origin.artifact,
            revision=origin.revision,
            dtype=dtype_name(base.dtype),
            quantisation=_quantisation(choice),
            rank=choice.rank,
            alpha=choice.alpha,
            targets=sorted(_last_names(model)),
        ),
    )
    return model, tokenizer


def read_adapter(folder: Path, record: AdapterRecord | None = None) -> tuple[PeftModel, Any]:
    """The adapter of a folder beside its base, ready to be played or trained on. `record`: where the base lies when the
    folder's own word does not hold here. Raises ModelUnusable."""
    record = record or read_record(folder)
    with base_of(record) as source:
        precision = Precision(record.dtype, record.quantisation)
        base = read_model(source.name, precision, revision=source.revision, is_local=source.is_local)
    tokenizer = read_tokenizer(str(folder))
    model = beside(base, folder)
    base.config.pad_token_id = tokenizer.pad_token_id
    remember(model, record)
    return model, tokenizer


def beside(base: Any, folder: Path) -> PeftModel:
    """The folder's adapter put on this base, whatever it is."""
    try:
        return PeftModel.from_pretrained(base, str(folder), adapter_name=NAME, is_trainable=True).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelUnusable(f"the adapter does not fit its base: {error}") from error


def save_adapter(model: PeftModel, tokenizer: Any, folder: Path) -> None:
    """The adapter's weights, what it was trained beside, and the tokenizer; never the base."""
    record = record_of(model)
    if record is None:
        raise ValueError("nobody said beside which base this adapter was trained")
    model.save_pretrained(str(folder), selected_adapters=[NAME], save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # peft's own; an export writes one that says something
    (folder / RECORD_FILE).write_text(record.model_dump_json(indent=2))
    tokenizer.save_pretrained(folder)


def read_record(folder: Path) -> AdapterRecord:
    path = folder / RECORD_FILE
    if not path.exists():
        raise ModelUnusable(f"an adapter without {RECORD_FILE}: nobody knows in which precision its base was")
    try:
        return AdapterRecord.model_validate_json(path.read_text())
    except ValueError as error:
        raise ModelUnusable(f"{RECORD_FILE} cannot be read: {error}") from error


def remember(model: PeftModel, record: AdapterRecord) -> None:
    model.proctor_record = record


def record_of(model: Any) -> AdapterRecord | None:
    """Of a model in memory; None for one that is trained whole."""
    record: AdapterRecord | None = getattr(model, "proctor_record", None)
    return record


@contextmanager
def unrounded(model: Any) -> Iterator[None]:
    """TRL's trainers round an adapter beside a 4-bit base to bf16 when they are made. Small learning rates would then
    move nothing, so what was rounded is put back."""
    precise = {name: weight.detach().clone() for name, weight in _trained(model)} if record_of(model) else {}
    yield
    for name, weight in _trained(model):
        if name in precise:
            weight.data = precise[name]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _read_base(source: Source, choice: AdapterChoice) -> Any:
    """In its own precision; rounded to 4 bits where that is asked for, what is not rounded staying in its own."""
    base = read_model(source.name, OWN, revision=source.revision, is_local=source.is_local)
    if (quantisation := _quantisation(choice)) is None:
        return base
    precision = Precision(dtype_name(base.dtype), quantisation)
    del base
    return read_model(source.name, precision, revision=source.revision, is_local=source.is_local)


def _quantisation(choice: AdapterChoice) -> Quantisation | None:
    return Quantisation(is_double=choice.is_double_quantised) if choice.kind is AdapterKind.QLORA else None


def _attached(base: Any, choice: AdapterChoice) -> PeftModel:
    configuration = LoraConfig(
        r=choice.rank,
        lora_alpha=choice.alpha,
        lora_dropout=choice.dropout,
        target_modules=choice.layers,
        use_rslora=choice.is_rank_stabilised,
        task_type="CAUSAL_LM",
    )
    try:
        model = get_peft_model(base, configuration, adapter_name=NAME)
    except ValueError as error:
        raise ModelUnusable(f"this model has no such layers to adapt ({choice.targets}): {error}") from error
    model.peft_config[NAME].base_model_name_or_path = None  # a path of this moment; our record says what it was
    return model


def _last_names(model: PeftModel) -> set[str]:
    targets = model.peft_config[NAME].target_modules
    return {str(name).rpartition(".")[2] for name in targets}


def _trained(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)
