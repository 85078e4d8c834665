"""Adapters (LoRA): small trained weights next to a frozen base, and the record that each of their checkpoints needs.

The `adapter_config.json` of a LoRA does not contain the precision of its base. An adapter on another base plays
differently, so every adapter checkpoint has an `AdapterRecord`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, field_validator

from backend.domain.training.blocks import Block, setting

ALL_LAYERS = "all-linear"
_ADAPTER = "adapter.kind=lora|qlora"
_OUTPUT_HEADS = {"lm_head", "embed_out", "output"}


class AdapterKind(StrEnum):
    """Which weights are trained."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class AdapterChoice(Block):
    """Train all weights of the model, or only a small adapter."""

    title: ClassVar[str] = "Adapter"

    kind: AdapterKind = setting(AdapterKind.FULL, "Trained weights")
    """full: all weights in 32 bits; best for models of a few million parameters. lora: two thin matrices next to each
    layer, with the base in its own precision; a fraction of the memory, for pretrained models. qlora: the same on a
    base quantized to 4 bits (NF4), if the base does not fit otherwise; needs bitsandbytes on the worker."""
    rank: int = setting(16, only=_ADAPTER, ge=1, le=1024)
    """Rank of the adapter matrices. 8 to 64 is usual; more costs memory and rarely helps."""
    alpha: float = setting(32.0, only=_ADAPTER, gt=0, le=8192)
    """Scale of the adapter: its output is multiplied by alpha / rank. Twice the rank is usual. Raise it with the
    rank."""
    dropout: float = setting(0.0, only=_ADAPTER, ge=0, lt=1)
    """Dropout of the adapter's inputs. Use 0 for GRPO, which must train the policy that sampled; 0.05 to 0.1 if a
    warm-up memorizes few examples."""
    targets: str = setting(ALL_LAYERS, "Target layers", only=_ADAPTER, max_length=400, pattern=r"^[A-Za-z0-9_.,\- ]+$")
    """Layers with an adapter. all-linear: every linear layer except the output, which learns best. Name layers,
    separated by commas, to save memory: q_proj,v_proj. Use fewer layers if memory is short."""
    is_rank_stabilised: bool = setting(False, "Rank-stabilized scale", only=_ADAPTER)
    """Multiply by alpha / √rank instead. Use it for ranks of 64 and more."""
    is_double_quantised: bool = setting(True, "Double quantization", only="adapter.kind=qlora")
    """QLoRA only: also quantize the scales of the 4-bit base. Saves 0.4 bits per weight. Turn it off if memory is not
    scarce."""

    @field_validator("targets")
    @classmethod
    def _no_output(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        if not names:
            raise ValueError("name at least one layer, or all-linear")
        if heads := _OUTPUT_HEADS.intersection(name.rpartition(".")[2] for name in names):
            raise ValueError(f"{', '.join(sorted(heads))} is the output layer; GRPO cannot train an adapter on it")
        return ",".join(names)

    @property
    def layers(self) -> str | list[str]:
        """The layers, as peft takes them."""
        return ALL_LAYERS if self.targets == ALL_LAYERS else self.targets.split(",")


class Quantisation(BaseModel, frozen=True):
    """How a base was quantized to 4 bits when it was loaded."""

    method: Literal["bitsandbytes"] = "bitsandbytes"
    type: Literal["nf4"] = "nf4"
    is_double: bool = True


class AdapterRecord(BaseModel, frozen=True):
    """The base that an adapter was trained on, and its precision."""

    base: str
    """A Hugging Face name, a folder of the worker, or `checkpoint:<id>`."""
    artifact: str | None = None
    """Artifact of the weights of the base, if it is a checkpoint."""
    revision: str | None = None
    """Commit on the Hub, or `sha256:…` of the weights in a folder."""
    dtype: str
    """Precision of the base: `bfloat16`."""
    quantisation: Quantisation | None = None
    rank: int
    alpha: float
    targets: list[str] = []

    @property
    def kind(self) -> AdapterKind:
        return AdapterKind.QLORA if self.quantisation else AdapterKind.LORA


def public_name(base: str) -> str:
    """The name of a base without the path of a folder on a worker."""
    return base.rstrip("/").rpartition("/")[2] if base.startswith(("/", "~", ".")) else base


def refusal_to_continue(record: Mapping[str, Any] | None, choice: AdapterChoice) -> str | None:
    """Why training cannot continue from a checkpoint with this record, or None. A record of None: full weights."""
    if record is None:
        return None
    known = AdapterRecord.model_validate(record)
    if known.kind is choice.kind:
        return None
    if choice.kind is AdapterKind.FULL:
        return (
            f"this checkpoint is an adapter ({known.kind}): continue with adapter.kind={known.kind}, or start from a "
            "merged export"
        )
    trained = "a base quantized to 4 bits" if known.quantisation else f"a base in {known.dtype}"
    return f"this adapter was trained on {trained}: continue with adapter.kind={known.kind}"
