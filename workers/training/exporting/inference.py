"""Chat with this exported policy. Requires `transformers`; an adapter also needs `peft`, and a GGUF file `gguf`.

python inference.py "first message"      print a reply, then read more messages line by line from standard input
python inference.py --json < messages    read one message per line and print each reply as a line of JSON
"""

import argparse
import hashlib
import json
import sys
from itertools import chain
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

HERE = Path(__file__).resolve().parent


def load(folder: Path, base: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model and tokenizer as they were verified. `base`: folder or name of an adapter's base model."""
    manifest = json.loads((folder / "manifest.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if manifest["form"] == "gguf":
        name = next(folder.glob("*.gguf")).name
        return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name), tokenizer
    if manifest["form"] != "adapter":
        return AutoModelForCausalLM.from_pretrained(folder, dtype="auto"), tokenizer
    from peft import PeftModel

    described = manifest["base"]
    name, revision = base or described["name"], described["revision"] or ""
    if Path(name).is_dir():
        if revision.startswith("sha256:") and digest(Path(name)) != revision:
            sys.exit(f"{name} is not the base model that this adapter was trained on")
        revision = ""
    elif revision.startswith("sha256:"):
        sys.exit(f"This adapter needs its base model, {name}. Pass its folder with --base FOLDER.")
    options = {"dtype": getattr(torch, described["dtype"]), "revision": revision or "main"}
    if quantization := described["quantisation"]:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=quantization["type"],
            bnb_4bit_use_double_quant=quantization["is_double"],
            bnb_4bit_compute_dtype=options["dtype"],
        )
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(name, **options), folder), tokenizer


def digest(folder: Path) -> str:
    """One hash of a folder's configuration and weights."""
    whole = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        with path.open("rb") as file:
            whole.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return "sha256:" + whole.hexdigest()


def has_system_role(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the chat template writes a system message."""
    probe = [{"role": "system", "content": "Qzsystem"}, {"role": "user", "content": "Hello."}]
    try:
        return "Qzsystem" in tokenizer.apply_chat_template(probe, tokenize=False)
    except Exception:  # a template refuses roles by an error of its own
        return False


def reply(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    messages: list[dict[str, str]],
    temperature: float,
    max_tokens: int,
) -> str:
    """The next message of the policy."""
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    ids = ids.to(model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    written = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **sampling,
    )[0][ids.shape[1] :].tolist()
    if written and written[-1] == tokenizer.eos_token_id:
        written.pop()
    return str(tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("message", nargs="*", help="first message")
    options.add_argument("--base", help="folder or name of an adapter's base model. Default: the name in manifest.json")
    options.add_argument("--system", help="system message. Default: that of the training")
    options.add_argument("--temperature", type=float, default=0.0, help="0 picks the most likely token (default)")
    options.add_argument("--max-tokens", type=int, default=256, help="maximum length of a reply")
    options.add_argument("--json", action="store_true", help="print each reply as a line of JSON")
    given = options.parse_args()
    model, tokenizer = load(HERE, given.base)
    model.eval()
    system = given.system or json.loads((HERE / "manifest.json").read_text())["system"]
    messages = [{"role": "system", "content": system}] if system and has_system_role(tokenizer) else []
    for text in chain(given.message, (line.rstrip("\n") for line in sys.stdin)):
        is_folded = bool(system) and not messages  # as in training
        messages.append({"role": "user", "content": f"{system}\n\n{text}" if is_folded else text})
        answer = reply(model, tokenizer, messages, given.temperature, given.max_tokens)
        messages.append({"role": "assistant", "content": answer})
        sys.stdout.write((json.dumps({"message": text, "reply": answer}) if given.json else answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
