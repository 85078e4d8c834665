"""Reading weights: safetensors only, and never code that came with a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from backend.domain.training.adapter import Quantisation

_UNSAFE = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".gguf"}
"""Weight formats that run code when they are read, or that this product does not read."""


class ModelUnusable(ValueError):
    """The model cannot be used here."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights are held in memory."""

    dtype: str = "float32"
    """`auto`: as the model's own files say."""
    quantisation: Quantisation | None = None


TRAINED_WHOLE = Precision()
OWN = Precision("auto")


def check_weight_files(folder: Path) -> None:
    """Raises ModelUnusable unless the folder's weights are safetensors and nothing else."""
    if not folder.is_dir():
        raise ModelUnusable(f"there is no folder {folder.name}")
    unsafe = sorted(path.name for path in folder.rglob("*") if path.suffix in _UNSAFE)
    if unsafe:
        raise ModelUnusable(f"only safetensors weights are read; found {', '.join(unsafe)}")
    if not any(folder.glob("*.safetensors")):
        raise ModelUnusable("the folder holds no safetensors weights")


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_model(source: str, precision: Precision, *, revision: str | None = None, is_local: bool = True) -> Any:
    """A model on this machine's best device. Raises ModelUnusable."""
    try:
        configuration = AutoConfig.from_pretrained(
            source, trust_remote_code=False, local_files_only=is_local, revision=revision
        )
        if getattr(configuration, "quantization_config", None) is not None:
            raise ModelUnusable("quantised models are not supported: choose one in full precision")
        model = AutoModelForCausalLM.from_pretrained(
            source,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=is_local,
            revision=revision,
            **_placement(precision),
        )
    except ModelUnusable:
        raise
    except ImportError as error:
        raise ModelUnusable(f"{source} cannot be loaded: this worker lacks a package. {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusable(f"{source} cannot be loaded: {error}") from error
    if precision.quantisation is None:
        return model.to(best_device())
    return _keep_unpacked(model)


def read_tokenizer(source: str, *, revision: str | None = None, is_local: bool = True) -> Any:
    try:
        return AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=is_local, revision=revision
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusable(f"{source} cannot be loaded: {error}") from error


def _placement(precision: Precision) -> dict[str, Any]:
    dtype = precision.dtype if precision.dtype == "auto" else getattr(torch, precision.dtype)
    if precision.quantisation is None:
        return {"dtype": dtype}
    if dtype == "auto":
        raise ValueError("a model that is rounded needs a precision for what is not")
    rounding = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=precision.quantisation.type,
        bnb_4bit_use_double_quant=precision.quantisation.is_double,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"dtype": dtype, "quantization_config": rounding, "device_map": {"": best_device()}}


def _keep_unpacked(model: Any) -> Any:
    """Bitsandbytes repacks weights at the first evaluation on some CPUs, from where no gradient flows and no merge is
    right. Its slower way is right always."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model
