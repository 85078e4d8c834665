"""Rows for detectors, written by hand."""

import random
import uuid
from dataclasses import replace
from typing import Any

from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.run_view import EnvironmentContext, RolloutRow
from backend.domain.detectors.settings import resolve_settings
from backend.domain.detectors.spec import FlagDraft
from backend.domain.results.pass_at_k import SuccessRule
from workers.detectors.scanner import RunScanner

WIN = EnvironmentContext(
    ("win", "style"),
    weights={"win": 1.0, "style": 0.2},
    shares={"win": 0.83, "style": 0.17},
    lowest=0.0,
    highest=1.2,
    success=SuccessRule("win", 1.0),
    prompt="Play.",
)
BATCH = replace(WIN, has_steps=False)


def row(reward: float = 0.5, reply: str = "<move>5</move>", **fields: Any) -> RolloutRow:
    values: dict[str, Any] = {
        "group": "0",
        "task": "train/0",
        "columns": {"win": min(1.0, reward), "style": max(0.0, reward - 1.0) / 0.2},
        "replies": (reply,),
        "tokens_out": len(reply.split()),
        "stop_reason": "done",
        "prompts": ("Your move?",),
        **fields,
    }
    return RolloutRow(id=uuid.uuid4(), reward=reward, **values)


def honest(number: int, seed: int = 0) -> list[RolloutRow]:
    """Different answers to different questions, some right."""
    dice = random.Random(seed)
    made = []
    for index in range(number):
        answer = dice.randint(1, 999)
        fields = {"prompts": (f"Task {index}?",), "actions": ({"answer": answer},), "task": f"train/{index}"}
        made.append(row(dice.choice([0.0, 1.0, 1.2]), f"I think it is <answer>{answer}</answer>", **fields))
    return made


def flags(detector: str, *batches: list[RolloutRow], context: EnvironmentContext = BATCH) -> list[FlagDraft]:
    """What one detector drafts over steps or batches; its settings are the defaults."""
    off = {name: replace(resolve_settings(spec), enabled=name == detector) for name, spec in SPECS.items()}
    scanner = RunScanner(context, off)
    return [draft for step, rows in enumerate(batches, 1) for draft in scanner.scan(step, rows)]


def marked(draft: FlagDraft, of: RolloutRow) -> str:
    """The text that the first span marks."""
    span = draft.evidence["spans"][0]
    return of.replies[span["turn"]][span["start"] : span["end"]]
