"""Small weights that are trained beside a base which stays as it is (LoRA), and what must be remembered with them.

`adapter_config.json` of a LoRA says nothing about the base's precision: an adapter put beside another base than the
one it was trained beside plays differently, so every checkpoint of one carries an `AdapterRecord`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from backend.domain.training.blocks import Block

ALL_LAYERS = "all-linear"
_OUTPUT_HEADS = {"lm_head", "embed_out", "output"}


class AdapterKind(StrEnum):
    """What of a model is trained."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class AdapterChoice(Block):
    """Which weights are trained: all of the model's, or a small adapter beside a base that stays as it is."""

    kind: AdapterKind = AdapterKind.FULL
    """full: all weights, in 32 bits; best for models of some million parameters. lora: two thin matrices beside each
    layer, the base stays in its own precision; a fraction of the memory, for pretrained models. qlora: the same beside
    a base rounded to 4 bits (NF4), when the base does not fit otherwise; needs bitsandbytes on the worker."""
    rank: int = Field(default=16, ge=1, le=1024)
    """Width of the adapter's matrices: how much it can learn. 8 to 64 is usual; more costs memory and rarely helps."""
    alpha: float = Field(default=32.0, gt=0, le=8192)
    """How strongly the adapter acts: its product is multiplied by alpha / rank. Twice the rank is usual; change it with
    the rank, and the learning rate when it learns too slowly."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the adapter's inputs that are dropped in training. Leave it at 0 for reinforcement, which must train the
    policy that played; 0.05 to 0.1 when a warm-up has few lessons and learns them by heart."""
    targets: str = Field(default=ALL_LAYERS, max_length=400, pattern=r"^[A-Za-z0-9_.,\- ]+$")
    """Which layers get an adapter. all-linear: every linear layer but the output, which learns best. Choose names of
    layers, separated by commas, when memory is short: q_proj,v_proj uses less."""
    is_rank_stabilised: bool = False
    """Multiply by alpha / √rank instead. For ranks of 64 and more, where alpha / rank makes the adapter too quiet to
    use its width."""
    is_double_quantised: bool = True
    """Only qlora: round the scales of the 4-bit base too. Saves 0.4 bits a weight; turn off when memory is not scarce
    and the base should be as exact as 4 bits allow."""

    @field_validator("targets")
    @classmethod
    def _no_output(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        if not names:
            raise ValueError("name at least one layer, or all-linear")
        if heads := _OUTPUT_HEADS.intersection(name.rpartition(".")[2] for name in names):
            raise ValueError(f"{', '.join(sorted(heads))} is the output; reinforcement cannot train an adapter on it")
        return ",".join(names)

    @property
    def layers(self) -> str | list[str]:
        """As peft takes them."""
        return ALL_LAYERS if self.targets == ALL_LAYERS else self.targets.split(",")


class Quantisation(BaseModel):
    """How a base was rounded to 4 bits when it was loaded."""

    model_config = ConfigDict(frozen=True)

    method: Literal["bitsandbytes"] = "bitsandbytes"
    type: Literal["nf4"] = "nf4"
    is_double: bool = True


class AdapterRecord(BaseModel):
    """Beside which base an adapter was trained, and in which precision."""

    model_config = ConfigDict(frozen=True)

    base: str
    """A Hugging Face name, a folder of the worker, or `checkpoint:<id>`."""
    artifact: str | None = None
    """Where the base's weights lie when they are a checkpoint of ours."""
    revision: str | None = None
    """The Hub's commit, or `sha256:…` of a folder's weights."""
    dtype: str
    """Of the base: `bfloat16`."""
    quantisation: Quantisation | None = None
    rank: int
    alpha: float
    targets: list[str] = []
    """Names of the layers that have an adapter."""

    @property
    def kind(self) -> AdapterKind:
        return AdapterKind.QLORA if self.quantisation else AdapterKind.LORA

    @property
    def public_base(self) -> str:
        return public_name(self.base)


def public_name(base: str) -> str:
    """A base as others may call it: a folder of a worker by its last part."""
    return base.rstrip("/").rpartition("/")[2] if base.startswith(("/", "~", ".")) else base


def refusal_to_continue(record: Mapping[str, Any] | None, choice: AdapterChoice) -> str | None:
    """Why a checkpoint with this record (None: it has all weights) cannot be trained on by this choice, or None."""
    if record is None:
        return None
    known = AdapterRecord.model_validate(record)
    if known.kind is choice.kind:
        return None
    if choice.kind is AdapterKind.FULL:
        return (
            f"this checkpoint is an adapter ({known.kind}): train it on with adapter.kind={known.kind}, "
            "or export it merged and start from that folder"
        )
    trained = "a base rounded to 4 bits" if known.quantisation else f"a base in {known.dtype}"
    return f"this adapter was trained beside {trained}: train it on with adapter.kind={known.kind}"
