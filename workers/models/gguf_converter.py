"""Write a folder of safetensors as one GGUF file, with the arguments of llama.cpp's converter.

    python -m workers.models.gguf_converter FOLDER --outfile FILE --outtype f16

Supports what can be proven here: models of the Llama architecture whose tokenizer came from a GGUF file (`gguf_base`),
so that llama.cpp's name of its text splitting is known. For other models, install llama.cpp's convert_hf_to_gguf.py.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, get_tensor_name_map, quantize
from safetensors import safe_open

PRE_TOKENIZER = "gguf_pre"
TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}
"""Type of the matrices, and of the file. Vectors are always f32."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--outfile", type=Path, required=True)
    parser.add_argument("--outtype", choices=TYPES, default="f16")
    given = parser.parse_args()
    try:
        write_gguf(given.folder, given.outfile, given.outtype)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def write_gguf(folder: Path, target: Path, outtype: str) -> None:
    """Write the model and tokenizer of a folder. Raises ValueError with the reason if they are not supported."""
    configuration = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    described = json.loads((folder / "tokenizer_config.json").read_text())
    rope = configuration.get("rope_parameters") or {}
    if configuration["model_type"] != "llama" or configuration.get("attention_bias") or configuration.get("mlp_bias"):
        raise ValueError(f"the architecture {configuration['model_type']} needs llama.cpp's convert_hf_to_gguf.py")
    if not described.get(PRE_TOKENIZER) or tokenizer["model"]["type"] != "BPE":
        raise ValueError("its tokenizer did not come from a GGUF file: install llama.cpp's convert_hf_to_gguf.py")
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"positions scaled as {rope['rope_type']} need llama.cpp's convert_hf_to_gguf.py")
    heads = configuration["num_attention_heads"]
    writer = GGUFWriter(target, "llama")
    writer.add_type("model")
    writer.add_name(configuration.get("_model_name_or_path") or folder.name)
    writer.add_file_type(TYPES[outtype][1])
    writer.add_block_count(configuration["num_hidden_layers"])
    writer.add_context_length(configuration["max_position_embeddings"])
    writer.add_embedding_length(configuration["hidden_size"])
    writer.add_feed_forward_length(configuration["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(configuration["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(configuration["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    writer.add_rope_dimension_count(configuration.get("head_dim") or configuration["hidden_size"] // heads)
    writer.add_vocab_size(configuration["vocab_size"])
    _add_tokenizer(writer, folder, tokenizer, described, configuration["vocab_size"])
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, configuration["num_hidden_layers"])
    for name, tensor in _tensors(folder):
        if name == "lm_head.weight" and configuration.get("tie_word_embeddings"):
            continue
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            raise ValueError(f"the weight {name} is unknown to llama.cpp's architecture llama")
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = _interleaved(tensor, heads if "q_proj" in name else configuration["num_key_value_heads"])
        kind = TYPES[outtype][0] if tensor.dim() > 1 else GGMLQuantizationType.F32
        writer.add_tensor(known, quantize(tensor.float().numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                yield name, opened.get_tensor(name)


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighboring pairs of a head's rows, transformers the first half with the second."""
    rows = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, rows, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape).contiguous()


def _add_tokenizer(
    writer: GGUFWriter, folder: Path, tokenizer: dict[str, object], described: dict[str, object], rows: int
) -> None:
    model, added = tokenizer["model"], {each["id"]: each for each in tokenizer.get("added_tokens", [])}  # type: ignore[attr-defined]
    vocabulary = {place: token for token, place in model["vocab"].items()}  # type: ignore[index]
    vocabulary |= {place: each["content"] for place, each in added.items()}
    tokens, types = [], []
    for place in range(rows):  # embeddings without a token are named, as llama.cpp's converter does
        tokens.append(vocabulary.get(place, f"[PAD{place}]"))
        kind = TokenType.NORMAL if place in vocabulary else TokenType.UNUSED
        if place in added:
            kind = TokenType.CONTROL if added[place]["special"] else TokenType.USER_DEFINED
        types.append(kind)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(str(described[PRE_TOKENIZER]))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = model["merges"]  # type: ignore[index]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    places = {token: place for place, token in vocabulary.items()}
    setters = {
        "bos_token": writer.add_bos_token_id,
        "eos_token": writer.add_eos_token_id,
        "unk_token": writer.add_unk_token_id,
        "pad_token": writer.add_pad_token_id,
    }
    for name, add in setters.items():
        token = described.get(name)
        token = token["content"] if isinstance(token, dict) else token
        if token is not None:
            add(places[token])
    writer.add_add_bos_token(bool(described.get("add_bos_token", False)))
    writer.add_add_space_prefix(False)
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text())


if __name__ == "__main__":
    sys.exit(main())
