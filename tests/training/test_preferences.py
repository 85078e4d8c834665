"""Pairs of stored episodes, and DPO on them with masks by token."""

import math
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.domain.training.examples import Conversation
from backend.domain.training.preferences import PreferenceChoice, RankedEpisode, build_pairs, sampled_pairs
from backend.domain.vocabulary import Verdict
from tests.training.game import make_tiny
from workers.models.chat import ChatTokens
from workers.training.dpo import DpoRun, PairExample, collate_pairs, pair_of, train_dpo

OPENING = {"role": "user", "content": "Say <move>4</move>."}


def episode(task: str, reward: float | None, verdict: Verdict | None = None) -> RankedEpisode:
    return RankedEpisode(uuid.uuid4(), task, reward, verdict)


def halves(episodes: list[RankedEpisode], **choices: Any) -> list[tuple[int, int, str]]:
    """Each pair by the positions of its episodes."""
    places = {each.id: place for place, each in enumerate(episodes)}
    pairs = build_pairs(episodes, PreferenceChoice(**choices))
    return [(places[pair.chosen], places[pair.rejected], pair.reason) for pair in pairs]


def test_the_best_is_paired_with_the_worst_of_the_same_task() -> None:
    episodes = [episode("a", 0.2), episode("b", 5), episode("a", 1), episode("a", 0.5), episode("a", 0.9)]
    assert halves(episodes) == [(2, 0, "rewards"), (4, 3, "rewards")]
    assert halves(episodes, margin=0.5) == [(2, 0, "rewards")]
    assert halves(episodes, per_task=1) == [(2, 0, "rewards")]
    assert halves([episode("a", 1), episode("a", 1)], margin=0) == [], "equal rewards prefer nothing"
    assert halves([episode("a", None), episode("a", 1)]) == [], "a failed reward says nothing"


def test_verdicts_prefer_honest_episodes_to_hacks_that_pay_most() -> None:
    cheap, paid = episode("a", 0.5, Verdict.HACK), episode("a", 2, Verdict.BROKEN_REWARD)
    poor, good = episode("a", 0.1, Verdict.HONEST), episode("a", 0.4, Verdict.HONEST)
    unjudged = episode("a", 0.9)
    episodes = [cheap, paid, poor, good, unjudged]
    assert halves(episodes, source="verdicts") == [(3, 1, "verdicts"), (2, 0, "verdicts")]
    assert halves(episodes, source="rewards") == [(4, 2, "rewards")], "a hack is never preferred"
    assert len(halves(episodes)) == 3
    pairs = build_pairs(episodes, PreferenceChoice(source="verdicts"))
    assert pairs[0].difference == pytest.approx(-1.6)


def test_a_sample_of_pairs_is_the_same_for_the_same_seed() -> None:
    pairs = build_pairs([episode(str(task), reward) for task in range(20) for reward in (0, 1)], PreferenceChoice())
    few = PreferenceChoice(most=5)
    assert sampled_pairs(pairs, few, 1) == sampled_pairs(pairs, few, 1) != sampled_pairs(pairs, few, 2)
    assert len(sampled_pairs(pairs, few, 1)) == 5


def conversation(*replies: str, learned: bool = True) -> Conversation:
    messages = [OPENING]
    for number, reply in enumerate(replies):
        messages += [{"role": "user", "content": "Again."}] if number else []
        messages.append({"role": "assistant", "content": reply})
    return Conversation(messages, (learned,) * len(replies))


def test_only_the_policys_tokens_count_also_between_turns_and_unparsed_ones() -> None:
    _, tokenizer = make_tiny()
    chat = ChatTokens(tokenizer)
    pair = pair_of(conversation("<move>4</move>", "4"), conversation("<move>", learned=False), chat)
    assert pair is not None
    batch = collate_pairs(
        [
            {
                f"{name}_{kind}": half.tokens if kind == "ids" else [0] * len(half.prompt) + half.mask
                for name, half in (("chosen", pair.chosen), ("rejected", pair.rejected))
                for kind in ("ids", "mask")
            }
        ],
        tokenizer.pad_token_id,
    )
    counted = [
        tokenizer.decode(ids[mask.bool()])
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    end = tokenizer.eos_token
    assert counted == [f"<move>4</move>{end}4{end}", f"<move>{end}"]
    assert batch["attention_mask"].sum(1).tolist() == [len(pair.chosen.tokens), len(pair.rejected.tokens)]
    assert "Again" in tokenizer.decode(batch["input_ids"][0]), "the environment's turn is there and does not count"


def test_episodes_that_begin_differently_or_do_the_same_are_no_pair() -> None:
    _, tokenizer = make_tiny()
    chat, first = ChatTokens(tokenizer), conversation("4")
    assert pair_of(first, conversation("4"), chat) is None
    other = Conversation([{"role": "user", "content": "Say 5."}, {"role": "assistant", "content": "5"}], (True,))
    assert pair_of(first, other, chat) is None
    assert pair_of(first, Conversation([OPENING], ()), chat) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_dpo_learns_the_order_and_resumes_bit_by_bit(tmp_path: Path) -> None:
    whole, curves = trained(tmp_path / "whole")
    assert curves[0]["loss"] == pytest.approx(math.log(2), abs=1e-4), "the policy is its own reference at first"
    assert curves[-1]["loss"] < 0.3
    assert curves[-1]["pairs/accuracy"] == 1
    assert curves[-1]["pairs/margin"] > 1 > abs(curves[0]["pairs/margin"])
    trained(tmp_path / "cut", stop_after=7)
    resumed, later = trained(tmp_path / "cut")
    assert torch.equal(resumed, whole)
    assert len(later) == len(curves) - 7


def trained(folder: Path, *, stop_after: int = 0) -> tuple[torch.Tensor, list[dict[str, float]]]:
    model, tokenizer = make_tiny()
    start = folder.parent / "start"
    model.save_pretrained(start)
    model.config.name_or_path = str(start)  # TRL reads its reference there
    chat = ChatTokens(tokenizer)
    digits = [pair_of(conversation("4", "4"), conversation(str(digit), "4"), chat) for digit in (0, 1, 2, 3, 5, 6)]
    pairs: list[PairExample] = [pair for pair in digits if pair is not None]
    curves = []

    def take(step: int, figures: dict[str, float]) -> bool:
        curves.append(figures)
        return step != stop_after

    choice = PreferenceChoice(epochs=6, batch=3, learning_rate=2e-3, warmup_steps=1)
    train_dpo(
        DpoRun(
            model=model,
            tokenizer=tokenizer,
            choice=choice,
            pairs=pairs,
            on_step=take,
            seed=3,
            folder=folder,
            save_every=5,
        )
    )
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), curves
