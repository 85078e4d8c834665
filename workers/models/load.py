"""Load weights from safetensors files or the Hugging Face Hub: whole models, and LoRA adapters with their base.

Code that comes with a model is never run.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.domain.training.adapter import AdapterChoice, AdapterKind, AdapterRecord, Quantisation, refusal_to_continue
from workers.models.chat import end_at_turns
from workers.models.gguf_base import CannotConvert, converted, is_gguf

LoadedModel: TypeAlias = PreTrainedModel | PeftModel
Loaded = tuple[LoadedModel, PreTrainedTokenizerBase]  # a model and its tokenizer
ADAPTER = "default"  # name of the adapter inside peft
RECORD_FILE = "base.json"
CONFIGURATION_FILE = "adapter_config.json"
_UNSAFE = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".gguf"}
"""Weight formats that run code when they are read, or that Proctor does not read."""
_DIGEST = "sha256:"


class ModelUnusable(ValueError):
    """The model cannot be used here."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    name: str  # a folder, or a name on the Hub
    revision: str | None = None  # commit on the Hub, or digest of the folder's weights
    is_local: bool = True

    @property
    def options(self) -> dict[str, object]:
        """Options of every `from_pretrained`: no code that comes with the model, and no download for a folder."""
        revision = None if self.is_local else self.revision
        return {"trust_remote_code": False, "local_files_only": self.is_local, "revision": revision}


def check_weight_files(folder: Path) -> None:
    """Raise ModelUnusable unless the folder's only weight files are safetensors."""
    if not folder.is_dir():
        raise ModelUnusable(f"there is no folder {folder.name}")
    unsafe = sorted(path.name for path in folder.rglob("*") if path.suffix in _UNSAFE)
    if unsafe:
        raise ModelUnusable(f"only safetensors weights are supported; found {', '.join(unsafe)}")
    if not any(folder.glob("*.safetensors")):
        raise ModelUnusable("the folder has no safetensors weights")


def find_folder(name: str, dtype: str | None = None) -> Path:
    """The folder of a base that is not on the Hub; for a GGUF file, that of its conversion in a precision.

    A folder that does not exist means a name on the Hub. Raises ModelUnusable.
    """
    if not is_gguf(name):
        return Path(name).expanduser()
    try:
        return converted(name, dtype)
    except CannotConvert as error:
        raise ModelUnusable(str(error)) from error


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_model(source: ModelSource, dtype: str, quantisation: Quantisation | None = None) -> PreTrainedModel:
    """Load a model on the best device of this machine. Raises ModelUnusable.

    `dtype`: `auto` is the precision of the model's files, which cannot be quantized.
    """
    placement: dict[str, object] = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    if quantisation is not None:
        placement["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=quantisation.type,
            bnb_4bit_use_double_quant=quantisation.is_double,
            bnb_4bit_compute_dtype=placement["dtype"],
        )
        placement["device_map"] = {"": best_device()}
    try:
        configuration = AutoConfig.from_pretrained(source.name, **source.options)
        if getattr(configuration, "quantization_config", None) is not None:
            raise ModelUnusable("quantized models are not supported: choose one in full precision")
        model = AutoModelForCausalLM.from_pretrained(source.name, use_safetensors=True, **source.options, **placement)
    except ModelUnusable:
        raise
    except ImportError as error:
        raise ModelUnusable(f"{source.name} cannot be loaded: this worker lacks a package. {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusable(f"{source.name} cannot be loaded: {error}") from error
    if quantisation is None:
        return model.to(best_device())
    # On some CPUs bitsandbytes repacks weights at the first evaluation. No gradient flows through repacked weights and
    # a merge into them is wrong. The slower path is always right.
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def read_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """Load a tokenizer. Its end-of-sequence token becomes the end of the assistant's turn."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.name, **source.options)
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusable(f"{source.name} cannot be loaded: {error}") from error
    end_at_turns(tokenizer)
    return tokenizer


def give_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, may_grow: bool) -> None:
    """Choose a padding token other than the end token; with the same token, the model would never learn to end.

    `may_grow`: add an embedding row if no existing one is free. Otherwise raises ModelUnusable if there is no token.
    """
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id:
        return
    rows = int(model.get_input_embeddings().weight.shape[0])
    spare = [token for token in tokenizer.all_special_tokens if token != tokenizer.eos_token]
    if may_grow or rows > len(tokenizer):
        tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
        if len(tokenizer) > rows:
            with torch.random.fork_rng():
                torch.manual_seed(0)  # the new row is random: the same one every time
                model.resize_token_embeddings(len(tokenizer))
    elif spare:
        tokenizer.pad_token = spare[-1]
    else:
        raise ModelUnusable("its tokenizer has no token for padding, and an adapter cannot add one")
    model.config.pad_token_id = tokenizer.pad_token_id


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelUnusable if the tokenizer is of another model: a token without an embedding fails deep in a step."""
    rows, highest = int(model.get_input_embeddings().weight.shape[0]), max(tokenizer.get_vocab().values(), default=-1)
    if highest >= rows:
        raise ModelUnusable(
            f"its tokenizer has {highest + 1:,} tokens, but the model has embeddings for {rows:,}: the tokenizer"
            " belongs to another model"
        )


@contextmanager
def base_of(record: AdapterRecord) -> Iterator[ModelSource]:
    """The base weights of an adapter, available inside the block. Raises ModelUnusable if they are gone or changed."""
    if record.artifact is None and not (record.revision or "").startswith(_DIGEST):
        yield ModelSource(record.base, record.revision, is_local=False)
        return
    with tempfile.TemporaryDirectory(prefix="proctor-base-") as scratch:
        if record.artifact is not None:
            try:
                folder = get_folder(record.artifact, Path(scratch) / "weights")
            except FileNotFoundError as error:
                raise ModelUnusable(
                    "the base of this adapter, a checkpoint, is missing from the artifact store"
                ) from error
        else:
            folder = find_folder(record.base, record.dtype)
        if not folder.is_dir():
            raise ModelUnusable(f"the base {record.base} of this adapter is not on this worker")
        if weights_digest(folder) != record.revision:
            raise ModelUnusable(f"the base {record.base} was changed since this adapter was trained on it")
        yield ModelSource(str(folder))


def weights_digest(folder: Path) -> str:
    """One hash of the configuration and weights in a folder."""
    whole = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        with path.open("rb") as file:
            whole.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return _DIGEST + whole.hexdigest()


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIGURATION_FILE).exists()


def load_folder(folder: Path) -> Loaded:
    """Load a checkpoint's folder on this machine's best device: a whole model in fp32, or an adapter with its base in
    the precision it was trained in. Both can be trained further."""
    check_weight_files(folder)
    return load_adapter(folder, read_record(folder)) if is_adapter(folder) else _load_whole(ModelSource(str(folder)))


def load_base(name: str) -> Loaded:
    """Load a Hugging Face model by name, or a folder on this worker."""
    folder = find_folder(name)
    return load_folder(folder) if folder.is_dir() else _load_whole(ModelSource(name, is_local=False))


def _load_whole(source: ModelSource) -> Loaded:
    model, tokenizer = read_model(source, "float32"), read_tokenizer(source)
    check_vocabulary(model, tokenizer)
    give_padding(model, tokenizer, may_grow=True)
    return model, tokenizer


def load_adapter(folder: Path, record: AdapterRecord) -> Loaded:
    """Load the adapter in a folder with the base that the record names, to sample or to train further."""
    with base_of(record) as source:
        base = read_model(source, record.dtype, record.quantisation)
    tokenizer = read_tokenizer(ModelSource(str(folder)))
    model = attach_adapter(base, folder)
    base.config.pad_token_id = tokenizer.pad_token_id
    model.proctor_record = record
    return model, tokenizer


def attach_adapter(base: PreTrainedModel, folder: Path) -> PeftModel:
    """Put the adapter in a folder on this base, whichever base it is."""
    try:
        return PeftModel.from_pretrained(base, str(folder), adapter_name=ADAPTER, is_trainable=True).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelUnusable(f"the adapter does not fit its base: {error}") from error


def start_from_base(name: str, choice: AdapterChoice, *, seed: int) -> Loaded:
    """Load a pretrained model for training: all weights in fp32, or a new adapter on the base in its own precision.

    The adapter's record pins the base by the Hub's commit or by the digest of the folder's weights.
    """
    folder = find_folder(name)
    if is_adapter(folder):
        if refusal := refusal_to_continue(read_record(folder).model_dump(), choice):
            raise ModelUnusable(refusal)
        return load_folder(folder)
    if choice.kind is AdapterKind.FULL:
        return load_base(name)
    if folder.is_dir():
        check_weight_files(folder)
        source = ModelSource(str(folder), weights_digest(folder))
    else:
        try:
            configuration = AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise ModelUnusable(f"{name} cannot be loaded: {error}") from error
        source = ModelSource(name, getattr(configuration, "_commit_hash", None), is_local=False)
    return _new_adapter(source, choice, seed, name)


def start_from_checkpoint(checkpoint: Checkpoint, choice: AdapterChoice, *, seed: int) -> Loaded:
    """Load the weights of an earlier run. An adapter is trained further. All weights become the base of a new adapter,
    whose record refers to their artifact."""
    if refusal := refusal_to_continue(checkpoint.adapter, choice):
        raise ModelUnusable(refusal)
    with tempfile.TemporaryDirectory(prefix="proctor-start-") as folder:
        weights = get_folder(checkpoint.artifact, Path(folder) / "weights")
        if choice.kind is AdapterKind.FULL or checkpoint.adapter is not None:
            return load_folder(weights)
        source = ModelSource(str(weights), weights_digest(weights))
        return _new_adapter(source, choice, seed, f"checkpoint:{checkpoint.id}", checkpoint.artifact)


def _new_adapter(
    source: ModelSource, choice: AdapterChoice, seed: int, name: str, artifact: str | None = None
) -> Loaded:
    """Add an adapter that does not change the base yet. `name` and `artifact`: how its record refers to the base."""
    quantisation = Quantisation(is_double=choice.is_double_quantised) if choice.kind is AdapterKind.QLORA else None
    base = read_model(source, "auto")
    dtype = dtype_name(base.dtype)
    if quantisation is not None:
        del base
        base = read_model(source, dtype, quantisation)
    tokenizer = read_tokenizer(source)
    check_vocabulary(base, tokenizer)
    give_padding(base, tokenizer, may_grow=False)
    configuration = LoraConfig(
        r=choice.rank,
        lora_alpha=choice.alpha,
        lora_dropout=choice.dropout,
        target_modules=choice.layers,
        use_rslora=choice.is_rank_stabilised,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = get_peft_model(base, configuration, adapter_name=ADAPTER)
        except ValueError as error:
            raise ModelUnusable(f"this model has no such layers to adapt ({choice.targets}): {error}") from error
    attached = model.peft_config[ADAPTER]
    attached.base_model_name_or_path = None  # a temporary path; the record says which base it was
    model.proctor_record = AdapterRecord(
        base=name,
        artifact=artifact,
        revision=source.revision,
        dtype=dtype_name(base.dtype),
        quantisation=quantisation,
        rank=choice.rank,
        alpha=choice.alpha,
        targets=sorted({str(target).rpartition(".")[2] for target in attached.target_modules}),
    )
    return model, tokenizer


def read_record(folder: Path) -> AdapterRecord:
    path = folder / RECORD_FILE
    if not path.exists():
        raise ModelUnusable(f"the adapter has no {RECORD_FILE}, so the precision of its base is unknown")
    try:
        return AdapterRecord.model_validate_json(path.read_text())
    except ValueError as error:
        raise ModelUnusable(f"{RECORD_FILE} cannot be read: {error}") from error


def record_of(model: LoadedModel) -> AdapterRecord | None:
    """The adapter record of a loaded model, or None if all of its weights are trained."""
    record: AdapterRecord | None = getattr(model, "proctor_record", None)
    return record


@contextmanager
def unrounded(model: LoadedModel) -> Iterator[None]:
    """Restore the trained weights of an adapter after the block.

    TRL's trainers round an adapter on a 4-bit base to bf16 when they are created. Updates with a small learning rate
    would then be lost.
    """
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    precise = {name: weight.detach().clone() for name, weight in trained.items()} if record_of(model) else {}
    yield
    for name, weight in model.named_parameters():
        if name in precise:
            weight.data = precise[name]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
