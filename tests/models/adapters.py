"""Tiny bases in folders, and adapters with different predictions from their base."""

from pathlib import Path
from typing import Any

import torch

from backend.domain.training.adapter import AdapterChoice, AdapterKind
from backend.domain.training.configuration import ModelChoice
from workers.models.build import build_model, build_tokenizer
from workers.models.load import load_folder, start_from_base
from workers.training.checkpoints import save_model

TEXTS = ["Say <move>4</move>.", *(f"<move>{digit}</move>" for digit in range(10))] * 5


def make_base(folder: Path, *, architecture: str = "llama", dtype: torch.dtype = torch.bfloat16, seed: int = 5) -> Path:
    tokenizer = build_tokenizer(TEXTS, context=96)
    model = build_model(tokenizer, ModelChoice(context=96, architecture=architecture), seed=seed)
    save_model(model.to(dtype), tokenizer, folder)
    return folder


def make_adapter(folder: Path, base: Path, kind: AdapterKind = AdapterKind.LORA, *, strength: float = 0.05) -> Path:
    """Not trained, but not zero either."""
    choice = AdapterChoice(kind=kind, rank=4, alpha=8)
    model, tokenizer = start_from_base(str(base), choice, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=strength)
    folder.mkdir(parents=True)
    save_model(model, tokenizer, folder)
    return folder


def logits_of(model: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 260, (4, 30), generator=generator)
    with torch.inference_mode():
        logits: torch.Tensor = model.eval()(input_ids=ids).logits.float()
    return logits


def logits_in(folder: Path) -> torch.Tensor:
    return logits_of(load_folder(folder)[0])
