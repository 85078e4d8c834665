"""The warm-up through TRL: masked loss, resume bit by bit."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.domain.training.warm_up import SftChoice
from tests.training.game import make_tiny, some_examples
from workers.training.examples import BrokenStep
from workers.training.sft import SftRun, train_sft

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

CHOICE = SftChoice(steps=30, batch=8, learning_rate=3e-3, warmup_steps=2)


def warmed_up(folder: Path, *, stop_after: int = 0, examples: Any = None) -> tuple[Any, Any, list[float]]:
    model, tokenizer = make_tiny()
    losses = []

    def take(step: int, figures: dict[str, float]) -> bool:
        if figures:
            losses.append(figures["loss"])
        return step != stop_after

    made = some_examples(tokenizer) if examples is None else examples
    run = SftRun(
        model=model,
        tokenizer=tokenizer,
        choice=CHOICE,
        examples=made,
        seed=3,
        folder=folder,
        save_every=10,
        on_step=take,
    )
    train_sft(run)
    return model, tokenizer, losses


def weights(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_it_imitates_the_good_reply_and_not_the_spoiled_one(tmp_path: Path) -> None:
    model, tokenizer, losses = warmed_up(tmp_path)
    assert losses[-1] < 0.1 < losses[0]
    prompt = some_examples(tokenizer, 1)[0].prompt
    with torch.no_grad():
        first = model(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    assert tokenizer.decode(first.argmax()) == "<move>"
    assert first[tokenizer.eos_token_id] < -3  # a third of the spoiled replies were empty


def test_its_speed_and_its_time_are_reported_in_parts_without_what_the_listener_does(tmp_path: Path) -> None:
    model, tokenizer = make_tiny()
    told, lessons = [], some_examples(tokenizer)

    def take(step: int, figures: dict[str, float]) -> bool:
        time.sleep(0.05)  # an examination
        if figures:
            told.append(figures)
        return True

    began = time.monotonic()
    short = CHOICE.model_copy(update={"steps": 10})
    run = SftRun(
        model=model,
        tokenizer=tokenizer,
        choice=short,
        examples=lessons,
        seed=3,
        folder=tmp_path,
        save_every=10,
        on_step=take,
    )
    train_sft(run)
    whole = time.monotonic() - began
    assert len(told) == 2
    for figures in told:
        parts = [figures[f"seconds/{name}"] for name in ("forward", "backward", "optimiser", "other", "idle")]
        assert all(part > 0 for part in parts)
        assert sum(parts) == pytest.approx(figures["seconds/step"])
        assert figures["tokens_per_second"] > 0
    assert sum(5 * figures["seconds/step"] for figures in told) < whole - 10 * 0.05
    tokens = sum(figures["tokens_per_second"] * 5 * figures["seconds/step"] for figures in told)
    mean = sum(len(lesson.tokens) for lesson in lessons) / len(lessons)
    assert tokens == pytest.approx(10 * CHOICE.batch * mean, rel=0.3)


def test_a_stopped_warm_up_continues_bit_by_bit(tmp_path: Path) -> None:
    whole, _, _ = warmed_up(tmp_path / "whole")
    stopped, _, _ = warmed_up(tmp_path / "cut", stop_after=13)
    resumed, _, _ = warmed_up(tmp_path / "cut")
    assert torch.equal(weights(resumed), weights(whole))
    assert not torch.equal(weights(stopped), weights(whole))


def test_no_training_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenStep, match="no training examples"):
        warmed_up(tmp_path, examples=[])
