"""In which forms a checkpoint can be handed out, and what each of them is."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.training.adapter import AdapterKind, AdapterRecord
from backend.domain.vocabulary import ExportForm


@dataclass(frozen=True, slots=True)
class OfferedForm:
    """A form as a person may choose it."""

    form: ExportForm
    title: str
    help: str
    refusal: str | None = None
    """Why this checkpoint cannot be handed out in it; None: it can."""
    is_default: bool = False


QUANTISER, CONVERTER = "bitsandbytes", "llama.cpp"
"""What workers call them among their engines."""
Licence = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9.+-]*$")]
REPOSITORY = r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$"


class HubUpload(BaseModel):
    """Sending an export to the Hugging Face Hub: what was asked for, and how it went."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    repository: str
    is_private: bool = True
    status: Literal["queued", "running", "completed", "failed"] = "queued"
    reason: str | None = None
    """Why it failed."""
    url: str | None = None
    """Of the commit, once it is there."""
    asked_at: datetime
    ended_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.status in {"completed", "failed"}


class ExportOptions(BaseModel):
    """What a person may say about an export, and where it went."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    licence: Licence = ""
    """A name that model hubs know: apache-2.0. It must fit the base's. Empty: `other`, which allows nothing."""
    gguf_type: Literal["f16", "bf16", "f32"] = "f16"
    """Precision of a GGUF file."""
    is_stored: bool = False
    """Keep the files unpacked in the artifact store too, where other programs can read them."""
    stored: str | None = None
    """Their key there, once they are."""
    hub: HubUpload | None = None
    """The newest upload."""
    hub_secret: str | None = None
    """Its token, encrypted, until it is over. Never shown."""


TITLES = {
    ExportForm.FULL: "All weights",
    ExportForm.ADAPTER: "Adapter alone",
    ExportForm.MERGED: "Merged into the original base",
    ExportForm.MERGED_DEQUANTISED: "Merged into the rounded base",
    ExportForm.GGUF: "GGUF for llama.cpp",
}
HELP = {
    ExportForm.FULL: "Every weight that was trained, for transformers and vLLM.",
    ExportForm.ADAPTER: "Some megabytes; whoever uses it needs the same base in the same precision, which is named.",
    ExportForm.MERGED: "One model that needs no peft, in the base's own precision.",
    ExportForm.MERGED_DEQUANTISED: (
        "Closest to what was trained, and labelled: its base stays rounded to 4 bits for ever, in 16-bit files."
    ),
    ExportForm.GGUF: "One file for llama.cpp and what is built on it, made of the merged or whole weights.",
}
_MERGED_OF_4_BIT = (
    "The usual choice: the adapter on the base before it was rounded to 4 bits. It plays a little differently from"
    " what was trained; the passport says how much."
)
_WHOLE = "All weights were trained: there is no adapter."


def offered_forms(
    adapter: Mapping[str, Any] | None, engines: Collection[str], *, is_pruned: bool = False
) -> list[OfferedForm]:
    """All forms, each with why it is not offered. `adapter`: the checkpoint's record, None for whole weights.
    `engines`: what the workers have."""
    record = AdapterRecord.model_validate(adapter) if adapter is not None else None
    offered = []
    for form in ExportForm:
        refusal = "Its weights were pruned." if is_pruned else _refusal(form, record, engines)
        help_ = _MERGED_OF_4_BIT if form is ExportForm.MERGED and record and record.quantisation else HELP[form]
        offered.append(OfferedForm(form, TITLES[form], help_, refusal, is_default=form is default_form(adapter)))
    return offered


def default_form(adapter: Mapping[str, Any] | None) -> ExportForm:
    return ExportForm.FULL if adapter is None else ExportForm.MERGED


def _refusal(form: ExportForm, record: AdapterRecord | None, engines: Collection[str]) -> str | None:
    if form is ExportForm.GGUF and CONVERTER not in engines:
        return "No worker has llama.cpp's convert_hf_to_gguf.py."
    if record is None:
        return None if form in {ExportForm.FULL, ExportForm.GGUF} else _WHOLE
    if form is ExportForm.FULL:
        return "Only an adapter was trained: merged has all weights."
    if record.kind is AdapterKind.QLORA and QUANTISER not in engines:
        return "It was trained beside a 4-bit base, and no worker has bitsandbytes to load that with."
    if form is ExportForm.MERGED_DEQUANTISED and record.quantisation is None:
        return "Its base was not rounded."
    return None
