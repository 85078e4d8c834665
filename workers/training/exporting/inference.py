"""Talk with this exported policy. It needs `transformers`; an adapter needs `peft` too, and a GGUF file `gguf`.

python inference.py "first message"      one reply, then more messages line by line from standard input
python inference.py --json < messages    each line a message; each reply a line of JSON
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

HERE = Path(__file__).resolve().parent


def load(folder: Path, base: str | None) -> tuple[Any, Any]:
    """Model and tokenizer, as the manifest says that they were proven."""
    manifest = json.loads((folder / "manifest.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if manifest["form"] == "adapter":
        return load_adapter(folder, manifest["base"], base), tokenizer
    if manifest["form"] == "gguf":
        name = next(folder.glob("*.gguf")).name
        return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name), tokenizer
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto"), tokenizer


def load_adapter(folder: Path, described: dict[str, Any], given: str | None) -> Any:
    """The base in the precision that the adapter was trained beside, and the adapter on it."""
    from peft import PeftModel

    name, revision = given or described["name"], described["revision"] or ""
    if Path(name).is_dir():
        if revision.startswith("sha256:") and digest(Path(name)) != revision:
            sys.exit(f"{name} is not the base that this adapter was trained beside")
        revision = ""
    elif revision.startswith("sha256:"):
        sys.exit(f"this adapter needs its base, {name}: say where it lies with --base FOLDER")
    options: dict[str, Any] = {"dtype": getattr(torch, described["dtype"]), "revision": revision or "main"}
    if rounding := described["quantisation"]:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=rounding["type"],
            bnb_4bit_use_double_quant=rounding["is_double"],
            bnb_4bit_compute_dtype=options["dtype"],
        )
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(name, **options), folder)


def digest(folder: Path) -> str:
    """One hash of a folder's configuration and weights."""
    whole = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        with path.open("rb") as file:
            whole.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return "sha256:" + whole.hexdigest()


def reply(model: Any, tokenizer: Any, messages: list[dict[str, str]], temperature: float, longest: int) -> str:
    """The next message of the policy."""
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    ids = ids.to(model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    written = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=longest,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **sampling,
    )[0][ids.shape[1] :].tolist()
    if written and written[-1] == tokenizer.eos_token_id:
        written.pop()
    return str(tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def asked(first: list[str]) -> Iterator[str]:
    yield from first
    yield from (line.rstrip("\n") for line in sys.stdin)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("message", nargs="*", help="what to say first")
    options.add_argument("--base", help="folder or name of an adapter's base, when it lies elsewhere")
    options.add_argument("--system", help="another system message than the one that it was trained with")
    options.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token")
    options.add_argument("--max-tokens", type=int, default=256)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    model, tokenizer = load(HERE, given.base)
    model.eval()
    system = given.system or json.loads((HERE / "manifest.json").read_text())["system"]
    messages = [{"role": "system", "content": system}] if system else []
    for text in asked(given.message):
        messages.append({"role": "user", "content": text})
        answer = reply(model, tokenizer, messages, given.temperature, given.max_tokens)
        messages.append({"role": "assistant", "content": answer})
        sys.stdout.write((json.dumps({"message": text, "reply": answer}) if given.json else answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
