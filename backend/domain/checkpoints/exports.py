"""The forms in which a checkpoint can be exported."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.training.adapter import AdapterKind, AdapterRecord
from backend.domain.vocabulary import ExportForm


@dataclass(frozen=True, slots=True)
class OfferedForm:
    form: ExportForm
    title: str
    help: str
    refusal: str | None = None
    """Why it is not available for this checkpoint; None if it is."""
    is_default: bool = False


QUANTISER, CONVERTER = "bitsandbytes", "llama.cpp"
"""Their names among the engines of a worker."""
License = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9.+-]*$")]
REPOSITORY = r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$"


class HubUpload(BaseModel):
    """An upload of an export to the Hugging Face Hub, and its result."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    repository: str
    is_private: bool = True
    status: Literal["queued", "running", "completed", "failed"] = "queued"
    reason: str | None = None
    """Why it failed."""
    url: str | None = None
    """URL of the commit, once it exists."""
    asked_at: datetime
    ended_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.status in {"completed", "failed"}


class ExportOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    licence: License = ""
    """As model hubs spell it, such as apache-2.0. Empty: `other`, which grants no rights."""
    gguf_type: Literal["f16", "bf16", "f32"] = "f16"
    """Precision of a GGUF file."""
    is_stored: bool = False
    """Also keep the unpacked files in the artifact store."""
    stored: str | None = None
    """Key of the unpacked files, once they are stored."""
    hub: HubUpload | None = None
    """The latest upload."""
    hub_secret: str | None = None
    """Encrypted token of the upload, until it has finished. Never shown."""


_FORMS = {
    ExportForm.FULL: ("All weights", "All trained weights, for transformers and vLLM."),
    ExportForm.ADAPTER: ("Adapter alone", "A few megabytes. Users need the same base model in the same precision."),
    ExportForm.MERGED: (
        "Merged into the original base",
        "One model that does not need peft, in the precision of the base model.",
    ),
    ExportForm.MERGED_DEQUANTISED: (
        "Merged into the quantized base",
        "Closest to what was trained. Its base weights stay rounded to 4 bits, stored in 16-bit files.",
    ),
    ExportForm.GGUF: (
        "GGUF for llama.cpp",
        "One file for llama.cpp and programs based on it, made from the merged or full weights.",
    ),
}
"""Title and help of each form."""
TITLES = {form: title for form, (title, _) in _FORMS.items()}
_MERGED_OF_4_BIT = (
    "Recommended: the adapter merged into the base before quantization. It behaves slightly differently from what was"
    " trained; the passport reports by how much."
)


def offered_forms(
    adapter: Mapping[str, object] | None, engines: Collection[str], *, is_pruned: bool = False
) -> list[OfferedForm]:
    """All forms, each with the reason if it is not available.

    `adapter`: the adapter record of the checkpoint, None for full weights. `engines`: engines of the workers.
    """
    record = AdapterRecord.model_validate(adapter) if adapter is not None else None
    offered = []
    for form, (title, help_) in _FORMS.items():
        refusal = None
        if is_pruned:
            refusal = "Its weights were pruned."
        elif form is ExportForm.GGUF and CONVERTER not in engines:
            refusal = "No worker has convert_hf_to_gguf.py of llama.cpp or the package gguf."
        elif record is None:
            if form not in {ExportForm.FULL, ExportForm.GGUF}:
                refusal = "All weights were trained, so there is no adapter."
        elif form is ExportForm.FULL:
            refusal = "Only an adapter was trained. Choose merged for all weights."
        elif record.kind is AdapterKind.QLORA and QUANTISER not in engines:
            refusal = "It was trained on a 4-bit base, and no worker has bitsandbytes to load it."
        elif form is ExportForm.MERGED_DEQUANTISED and record.quantisation is None:
            refusal = "Its base was not quantized."
        if form is ExportForm.MERGED and record is not None and record.quantisation is not None:
            help_ = _MERGED_OF_4_BIT
        offered.append(OfferedForm(form, title, help_, refusal, is_default=form is default_form(adapter)))
    return offered


def default_form(adapter: Mapping[str, object] | None) -> ExportForm:
    return ExportForm.FULL if adapter is None else ExportForm.MERGED
