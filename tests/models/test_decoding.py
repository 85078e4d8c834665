"""Prompts that are computed once for several rows, the cache in place, and weights made for decoding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.models.adapters import make_adapter, make_base
from tests.models.test_sampling import plain_logprobs, row, sampler, starts
from workers.models import decoding
from workers.models.decoding import ROOM, DecodingWeights, GrowingLayer, new_cache
from workers.models.load import load_folder
from workers.models.sampling import LEAST_SHARED, Sampler

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(params=["plain", "packed"])
def adapted(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A tiny model with an adapter that changes its logits, and its tokenizer. Its weights are packed as large ones."""
    if request.param == "packed":
        monkeypatch.setattr(decoding, "LEAST_PACKED", 0)
        monkeypatch.setattr(decoding, "LEAST_ROWS", 0)
    base = make_base(tmp_path / "base", dtype=torch.float32)
    return load_folder(make_adapter(tmp_path / "adapter", base))


def counted(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Shapes of the tokens that the model gets from now on."""
    shapes: list[tuple[int, int]] = []
    plain = model.forward

    def forward(**given: Any) -> Any:
        shapes.append(tuple(given["input_ids"].shape))
        return plain(**given)

    monkeypatch.setattr(model, "forward", forward)
    return shapes


def test_a_group_is_prefilled_once_and_a_shared_start_too(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = starts(tokenizer)[2]
    start = (start * LEAST_SHARED)[: 2 * LEAST_SHARED]
    prompts = [start + tokenizer.encode(text) for text in ("O plays 3.", "Invalid.")]
    rows = [row(prompts[place], seed) for seed, place in enumerate((1, 0, 0, 1, 1))]
    shapes = counted(model, monkeypatch)
    replies = sampler(model, tokenizer).sample(rows, [5] * 5)
    assert shapes[0] == (1, len(start))
    assert shapes[1] == (2, max(map(len, prompts)) - len(start))
    assert set(shapes[2:]) == {(5, 1)}
    monkeypatch.undo()
    for each, reply in zip(rows, replies, strict=True):
        assert np.allclose(reply.logprobs, plain_logprobs(model, each.tokens, len(reply.tokens)), atol=1e-4)


def test_a_prompt_that_starts_another_is_whole(model: Any, tokenizer: Any) -> None:
    long = (starts(tokenizer)[2] * 9)[: 3 * LEAST_SHARED]
    rows = [row(long, 0), row(long[: 2 * LEAST_SHARED], 1)]
    replies = sampler(model, tokenizer).sample(rows, [4, 4])
    for each, reply in zip(rows, replies, strict=True):
        assert np.allclose(reply.logprobs, plain_logprobs(model, each.tokens, len(reply.tokens)), atol=1e-4)


def test_a_growing_layer_holds_what_was_appended_and_chosen() -> None:
    torch.manual_seed(0)
    states = [torch.randn(2, 3, length, 4) for length in (5, 1, ROOM, 1)]
    layer = GrowingLayer()
    for part in states[:3]:
        keys, values = layer.update(part, -part)
    assert torch.equal(keys, torch.cat(states[:3], 2))
    layer.batch_select_indices(torch.tensor([1, 1, 0]))
    more = states[3][[0, 0, 1]]
    keys, values = layer.update(more, -more)
    assert torch.equal(keys, torch.cat([torch.cat(states[:3], 2)[[1, 1, 0]], more], 2))
    assert torch.equal(values, -keys)


def test_a_cache_is_appended_in_place(model: Any, tokenizer: Any) -> None:
    cache = new_cache(model.config)
    tokens = torch.tensor([starts(tokenizer)[0]])
    with torch.inference_mode():
        model(input_ids=tokens, past_key_values=cache, use_cache=True)
        place = cache.layers[0].keys.data_ptr()
        model(input_ids=tokens[:, :1], past_key_values=cache, use_cache=True)
    assert cache.layers[0].keys.data_ptr() == place
    assert cache.get_seq_length() == tokens.shape[1] + 1


def test_an_adapter_is_merged_while_sampling_and_its_base_is_untouched(adapted: tuple[Any, Any]) -> None:
    model, tokenizer = adapted
    before = {name: (weight.data_ptr(), weight.detach().clone()) for name, weight in model.named_parameters()}
    rows = [row(tokens, seed) for seed, tokens in enumerate(starts(tokenizer))]
    replies = sampler(model, tokenizer).sample(rows, [6] * 4)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    for name, (place, weight) in before.items():
        assert after[name].data_ptr() == place, name
        assert torch.equal(after[name], weight), name
    model.eval()
    for each, reply in zip(rows, replies, strict=True):
        assert np.allclose(reply.logprobs, plain_logprobs(model, each.tokens, len(reply.tokens)), atol=1e-4)


def test_merged_weights_follow_an_optimizer_step(adapted: tuple[Any, Any]) -> None:
    model, tokenizer = adapted
    machine = sampler(model, tokenizer)
    machine.sample([row(starts(tokenizer)[0], 0)], [2])
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.1, fused=True)
    model(input_ids=torch.tensor([starts(tokenizer)[0]])).logits.square().mean().backward()
    optimizer.step()
    each = row(starts(tokenizer)[0], 0)
    [reply] = machine.sample([each], [6])
    model.eval()
    assert np.allclose(reply.logprobs, plain_logprobs(model, each.tokens, len(reply.tokens)), atol=1e-4)


def test_bf16_weights_are_rounded_once_and_multiply_as_autocast_does(adapted: tuple[Any, Any]) -> None:
    model, tokenizer = adapted
    model.eval()
    tokens = torch.tensor([starts(tokenizer)[0]])
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = model(input_ids=tokens).logits
        with DecodingWeights(model, is_bf16=True).in_place(rows=1):
            logits = model(input_ids=tokens).logits
            assert "forward" in vars(model.get_output_embeddings())
    assert logits.dtype is torch.bfloat16
    assert torch.allclose(logits, expected, atol=0.02, rtol=0.02)
    if decoding.LEAST_PACKED:
        assert torch.equal(logits, expected)
    assert not any("forward" in vars(module) for module in model.modules() if isinstance(module, torch.nn.Linear))


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model with three query heads for each head of keys, whose weights are packed as large ones."""
    monkeypatch.setattr(decoding, "LEAST_PACKED", 0)
    monkeypatch.setattr(decoding, "LEAST_ROWS", 0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    configuration = LlamaConfig(vocab_size=300, hidden_size=48, intermediate_size=64, initializer_range=0.3, **sizes)
    torch.manual_seed(0)
    return LlamaForCausalLM(configuration).eval()


@pytest.mark.parametrize("is_bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("prompts", [[[5, 6, 7, 8]] * 3, [[5, 6, 7, 8], [9, 7], [11]]], ids=["equal", "padded"])
def test_replies_have_the_logprobs_of_a_plain_forward(grouped: Any, prompts: list[list[int]], is_bf16: bool) -> None:
    rows = [row(prompt, seed) for seed, prompt in enumerate(prompts)]
    replies = Sampler(grouped, end=-1, pad=2, is_bf16=is_bf16).sample(rows, [20] * 3)
    assert grouped.config._attn_implementation == "sdpa"
    for each, reply in zip(rows, replies, strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            expected = plain_logprobs(grouped, each.tokens, 20)
        assert np.allclose(reply.logprobs, expected, atol=0.3 if is_bf16 else 1e-4)
        assert np.abs(np.subtract(reply.logprobs, expected)).mean() < (0.05 if is_bf16 else 1e-4)


def test_greedy_replies_are_those_of_generate(grouped: Any) -> None:
    prompt = [5, 6, 7, 8]
    rows = [row(prompt, seed) for seed in range(2)]
    replies = Sampler(grouped, end=-1, pad=2, temperature=0).sample(rows, [40] * 2)
    tokens_BT = grouped.generate(torch.tensor([prompt]), max_new_tokens=40, min_new_tokens=40, do_sample=False)
    assert [reply.tokens for reply in replies] == [tokens_BT[0, len(prompt) :].tolist()] * 2


def test_a_disabled_adapter_does_not_change_replies(adapted: tuple[Any, Any]) -> None:
    model, tokenizer = adapted
    each, machine = row(starts(tokenizer)[0], 0), sampler(model, tokenizer)
    with model.disable_adapter():
        [reply] = machine.sample([each], [6])
        model.eval()
        assert np.allclose(reply.logprobs, plain_logprobs(model, each.tokens, len(reply.tokens)), atol=1e-4)
    other = row(starts(tokenizer)[0], 0)
    [reply] = machine.sample([other], [6])
    assert np.allclose(reply.logprobs, plain_logprobs(model.eval(), other.tokens, len(reply.tokens)), atol=1e-4)


def test_a_failure_leaves_the_model_its_own_weights(adapted: tuple[Any, Any]) -> None:
    model, tokenizer = adapted
    own = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    machine = Sampler(model, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    with pytest.raises(IndexError):
        machine.sample([row([10**6], 0)], [2])
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == own
    assert not any(module.merged for module in model.modules() if hasattr(module, "merged"))
