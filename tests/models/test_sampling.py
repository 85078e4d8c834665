"""Batched sampling with a kept cache."""

from typing import Any

import numpy as np
import pytest
import torch

from workers.models.sampling import BLOCK, Row, Sampled, Sampler, draw_from


def row(tokens: list[int], seed: int) -> Row:
    return Row(list(tokens), np.random.Generator(np.random.PCG64(seed)))


def sampler(model: Any, tokenizer: Any, **options: Any) -> Sampler:
    return Sampler(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id, **options)


def plain_logprobs(model: Any, tokens: list[int], count: int, temperature: float = 1.0) -> list[float]:
    """Of the last `count` tokens, by one forward pass over the whole."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits, -1)
    places = range(len(tokens) - count, len(tokens))
    return [logprobs[place - 1, tokens[place]].item() for place in places]


def starts(tokenizer: Any) -> list[list[int]]:
    return [tokenizer.encode(text) for text in ("O plays 3.", "You start.", "Reply only with <move>n</move>, X1.", "a")]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_equal_a_plain_forward(model: Any, tokenizer: Any, temperature: float) -> None:
    rows = [row(tokens, seed) for seed, tokens in enumerate(starts(tokenizer))]
    replies = sampler(model, tokenizer, temperature=temperature).sample(rows, [12] * 4)
    for each, reply in zip(rows, replies, strict=True):
        expected = plain_logprobs(model, each.tokens, len(reply.tokens), temperature)
        assert np.allclose(reply.logprobs, expected, atol=1e-4)


def play(model: Any, tokenizer: Any, *, forget: bool) -> tuple[list[Row], list[list[Sampled]], int]:
    """Three turns; a row leaves after the first, so that the cache is cut."""
    rows = [row(tokens, seed) for seed, tokens in enumerate(starts(tokenizer))]
    machine = sampler(model, tokenizer)
    turns = []
    for number in range(3):
        if number:
            rows = rows[1:] if number == 1 else rows[::-1]
            for place, each in enumerate(rows):
                each.tokens += tokenizer.encode("O plays 5." if place % 2 else "Invalid.")
        if forget:
            machine.forget()
        turns.append(machine.sample(rows, [8] * len(rows)))
    return rows, turns, machine.prefills


def test_a_kept_cache_gives_what_a_new_prefill_gives(model: Any, tokenizer: Any) -> None:
    rows, turns, prefills = play(model, tokenizer, forget=False)
    rows_anew, turns_anew, prefills_anew = play(model, tokenizer, forget=True)
    assert (prefills, prefills_anew) == (1, 3)
    assert [each.tokens for each in rows] == [each.tokens for each in rows_anew]
    for turn, turn_anew in zip(turns, turns_anew, strict=True):
        for reply, reply_anew in zip(turn, turn_anew, strict=True):
            assert np.allclose(reply.logprobs, reply_anew.logprobs, atol=1e-4)


def test_new_rows_start_a_new_cache(model: Any, tokenizer: Any) -> None:
    machine = sampler(model, tokenizer)
    first, second = (row(tokens, seed) for seed, tokens in enumerate(starts(tokenizer)[:2]))
    machine.sample([first], [4])
    machine.sample([first, second], [4, 4])
    assert machine.prefills == 2


def test_a_rows_reply_depends_on_its_seed_and_not_on_its_neighbors(model: Any, tokenizer: Any) -> None:
    prompts = starts(tokenizer)
    together = sampler(model, tokenizer).sample([row(tokens, 9) for tokens in prompts], [10, 3, 10, 10])
    alone = sampler(model, tokenizer).sample([row(prompts[2], 9)], [10])
    other_seed = sampler(model, tokenizer).sample([row(prompts[2], 10)], [10])
    assert alone[0].tokens == together[2].tokens
    assert alone[0].tokens != other_seed[0].tokens


def test_a_reply_ends_at_its_limit_or_its_end(model: Any, tokenizer: Any) -> None:
    rows = [row(starts(tokenizer)[0], seed) for seed in range(64)]
    limits = [1 + seed % 30 for seed in range(64)]
    replies = sampler(model, tokenizer).sample(rows, limits)
    for each, limit, reply in zip(rows, limits, replies, strict=True):
        assert 1 <= len(reply.tokens) <= limit
        assert tokenizer.eos_token_id not in reply.tokens[:-1]
        assert len(reply.tokens) == limit or reply.tokens[-1] == tokenizer.eos_token_id
        assert each.fed == len(each.tokens) - 1


def test_greedy_takes_the_likeliest_token(model: Any, tokenizer: Any) -> None:
    start = starts(tokenizer)[0]
    [reply] = sampler(model, tokenizer, temperature=0).sample([row(start, 0)], [1])
    with torch.no_grad():
        likeliest = model(input_ids=torch.tensor([start])).logits[0, -1].argmax().item()
    assert reply.tokens == [likeliest]


def test_frequencies_follow_the_probabilities(model: Any, tokenizer: Any) -> None:
    start, count = starts(tokenizer)[0], 4000
    replies = sampler(model, tokenizer, temperature=0.3).sample(
        [row(start, seed) for seed in range(count)], [1] * count
    )
    drawn = np.bincount([reply.tokens[0] for reply in replies], minlength=len(tokenizer)) / count
    with torch.no_grad():
        wanted = torch.softmax(model(input_ids=torch.tensor([start])).logits[0, -1] / 0.3, -1).numpy()
    assert np.abs(drawn - wanted).max() < 0.03


def test_a_small_nucleus_leaves_only_the_likeliest_token(model: Any, tokenizer: Any) -> None:
    start = starts(tokenizer)[0]
    replies = sampler(model, tokenizer, top_p=1e-6).sample([row(start, seed) for seed in range(20)], [1] * 20)
    [greedy] = sampler(model, tokenizer, temperature=0).sample([row(start, 0)], [1])
    assert {reply.tokens[0] for reply in replies} == set(greedy.tokens)


def test_only_so_many_of_the_likeliest_tokens_are_drawn(model: Any, tokenizer: Any) -> None:
    start = starts(tokenizer)[0]
    replies = sampler(model, tokenizer, top_k=2).sample([row(start, seed) for seed in range(60)], [1] * 60)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([start])).logits[0, -1]
    likeliest, second = logits.topk(2).indices.tolist()
    assert {reply.tokens[0] for reply in replies} == {likeliest, second}
    of_both = torch.log_softmax(logits[[likeliest, second]], -1)
    for reply in replies:
        assert reply.logprobs[0] == pytest.approx(of_both[int(reply.tokens[0] == second)].item(), abs=1e-4)


def test_a_draw_falls_into_its_tokens_part_of_the_whole_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    weights_BV = torch.rand(64, 2 * BLOCK + 7, generator=generator)
    weights_BV[:, BLOCK - 3 : BLOCK + 3] = 0
    weights_BV[:32, BLOCK:] = 0  # a whole block and more without a chance
    draw_B = torch.rand(64, generator=generator, dtype=torch.float64)
    draw_B[::8], draw_B[1::8] = 0.0, 1 - 2**-53
    edges_BV = weights_BV.double().cumsum(-1)
    token_B, total_B = draw_from(weights_BV, draw_B)
    assert torch.equal(token_B, torch.searchsorted(edges_BV, (draw_B * edges_BV[:, -1])[:, None], right=True)[:, 0])
    assert torch.allclose(total_B, edges_BV[:, -1])
    assert (weights_BV.gather(1, token_B[:, None]) > 0).all()
