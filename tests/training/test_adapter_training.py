"""Adapters through both of TRL's trainers: only they learn, resumed bit by bit, with the policy before as reference."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from backend.domain.training.adapter import AdapterKind
from backend.domain.training.warm_up import SftChoice
from tests.models.adapters import logits_of, make_adapter, make_base
from tests.training.game import CHOICE, Outcome, some_examples
from workers.models.load import load_folder
from workers.training.checkpoints import save_model
from workers.training.sft import SftRun, train_sft

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

SFT = SftChoice(steps=12, batch=4, learning_rate=1e-2, warmup_steps=2)
LEASHED = CHOICE.model_copy(update={"beta": 0.1, "learning_rate": 1e-2})


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "start", make_base(tmp_path / "base", dtype=torch.float32))


@pytest.fixture
def rounded(tmp_path: Path) -> Path:
    pytest.importorskip("bitsandbytes")
    return make_adapter(tmp_path / "start", make_base(tmp_path / "base", dtype=torch.float32), AdapterKind.QLORA)


def parts(model: Any, *, adapter: bool) -> torch.Tensor:
    """The trained policy's own weights, or its base's, in one row."""
    chosen = [w for name, w in model.named_parameters() if ("lora_" in name) == adapter and ".ref." not in name]
    return torch.cat([weight.detach().float().flatten() for weight in chosen])


def warmed_up(start: Path, folder: Path, *, stop_after: int = 0) -> tuple[Any, list[float]]:
    model, tokenizer = load_folder(start)
    losses = []

    def take(step: int, figures: dict[str, float]) -> bool:
        if figures:
            losses.append(figures["loss"])
        return step != stop_after

    run = SftRun(
        model=model,
        tokenizer=tokenizer,
        choice=SFT,
        examples=some_examples(tokenizer),
        seed=3,
        folder=folder,
        save_every=4,
        on_step=take,
    )
    train_sft(run)
    return model, losses


def test_a_warm_up_trains_the_adapter_and_leaves_the_base(start: Path, tmp_path: Path) -> None:
    before, _ = load_folder(start)
    model, losses = warmed_up(start, tmp_path / "sft")
    assert losses[-1] < losses[0]
    assert torch.equal(parts(model, adapter=False), parts(before, adapter=False))
    assert not torch.equal(parts(model, adapter=True), parts(before, adapter=True))


def test_a_stopped_warm_up_of_an_adapter_continues_bit_by_bit(start: Path, tmp_path: Path) -> None:
    whole, _ = warmed_up(start, tmp_path / "whole")
    warmed_up(start, tmp_path / "cut", stop_after=6)
    resumed, _ = warmed_up(start, tmp_path / "cut")
    assert torch.equal(parts(resumed, adapter=True), parts(whole, adapter=True))


def test_reinforcement_continues_bit_by_bit_and_is_held_by_the_policy_before(start: Path, tmp_path: Path) -> None:
    whole = Outcome(tmp_path / "whole", choice=LEASHED, start=start)
    assert whole.steps[0].figures.get("divergence") == pytest.approx(
        0, abs=1e-6
    )  # the reference is the adapter as it was, not the base
    assert (whole.steps[-1].figures.get("divergence") or 0) > 1e-5
    Outcome(tmp_path / "cut", choice=LEASHED, start=start, stop_after=2)
    resumed = Outcome(tmp_path / "cut", choice=LEASHED, start=start)
    assert torch.equal(parts(resumed.model, adapter=True), parts(whole.model, adapter=True))


def test_the_reference_is_no_part_of_a_checkpoint(start: Path, tmp_path: Path) -> None:
    outcome = Outcome(tmp_path / "grpo", choice=LEASHED, start=start)
    _, tokenizer = load_folder(start)
    saved = tmp_path / "saved"
    saved.mkdir()
    save_model(outcome.model, tokenizer, saved)
    assert sorted(path.name for path in saved.iterdir() if path.is_dir()) == []
    assert not any(".ref" in name for name in load_file(saved / "adapter_model.safetensors"))
    assert torch.equal(logits_of(load_folder(saved)[0]), logits_of(outcome.model))


def test_a_fresh_adapter_is_held_by_its_base(start: Path, tmp_path: Path) -> None:
    """An adapter that is still zero: the policy before is the base itself."""
    fresh = make_adapter(tmp_path / "fresh", tmp_path / "base", strength=0.0)
    outcome = Outcome(tmp_path / "grpo", choice=LEASHED, start=fresh)
    assert outcome.steps[0].figures.get("divergence") == pytest.approx(0, abs=1e-6)
    assert (outcome.steps[-1].figures.get("divergence") or 0) > 1e-5


def test_small_steps_move_an_adapter_with_a_rounded_base(rounded: Path, tmp_path: Path) -> None:
    """TRL would round it to bf16, where a step of 1e-6 is lost."""
    timid = CHOICE.model_copy(update={"learning_rate": 1e-6, "steps": 2})
    outcome = Outcome(tmp_path / "grpo", choice=timid, start=rounded)
    before, _ = load_folder(rounded)
    moved = (parts(outcome.model, adapter=True) - parts(before, adapter=True)).abs()
    assert {w.dtype for name, w in outcome.model.named_parameters() if "lora_" in name} == {torch.float32}
    assert float((moved > 0).float().mean()) > 0.9
    assert float(moved.max()) < 1e-5


def test_an_adapter_with_a_rounded_base_learns_from_what_it_sampled(rounded: Path, tmp_path: Path) -> None:
    before, _ = load_folder(rounded)
    outcome = Outcome(tmp_path / "grpo", choice=LEASHED, start=rounded)
    assert not torch.equal(parts(outcome.model, adapter=True), parts(before, adapter=True))
    assert outcome.steps[0].figures.get("divergence") == pytest.approx(0, abs=1e-4)
