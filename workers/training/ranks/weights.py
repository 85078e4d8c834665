"""Do all ranks still hold the same weights?"""

import hashlib
from typing import Any

from workers.training.examples import BrokenStep
from workers.training.ranks.ranks import Ranks


def check_same(ranks: Ranks, model: Any) -> None:
    """Raises BrokenStep, at the leader, when ranks have learned apart. Returns when all have come here, and so have
    written their part of the trainer's state."""
    if ranks.count == 1:
        return
    prints = ranks.gather(fingerprint(model))
    apart = [number for number, each in enumerate(prints) if each != prints[0]]
    if apart:
        raise BrokenStep(f"the weights of rank {apart[0]} are not those of rank 0: they no longer learn together")


def fingerprint(model: Any) -> str:
    """Of the weights that are trained: equal weights on equal devices have equal sums."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            digest.update(f"{name} {weight.detach().double().sum().item()!r}\n".encode())
    return digest.hexdigest()
