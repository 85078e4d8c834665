"""Models and tokenizers made in code."""

from typing import Any

import pytest
import torch

from backend.domain.training.configuration import ModelChoice
from backend.domain.training.memory import MAX_PARAMETERS, SHAPES, parameters_from_scratch
from tests.models.conftest import SYSTEM, some_texts
from workers.models.build import build_model, build_tokenizer


def test_the_same_seed_gives_the_same_weights(tokenizer: Any) -> None:
    first, second, other = (build_model(tokenizer, ModelChoice(), seed=seed) for seed in (7, 7, 8))
    weights = [torch.cat([parameter.flatten() for parameter in model.parameters()]) for model in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_building_leaves_the_global_random_numbers_alone(tokenizer: Any) -> None:
    torch.manual_seed(3)
    undisturbed = torch.rand(1)
    torch.manual_seed(3)
    build_model(tokenizer, ModelChoice(), seed=7)
    assert torch.equal(torch.rand(1), undisturbed)


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_every_shape_stays_under_five_million_parameters(tokenizer: Any, size: Any, architecture: Any) -> None:
    model = build_model(tokenizer, ModelChoice(size=size, architecture=architecture, context=512), seed=0)
    assert 100_000 < model.num_parameters() < MAX_PARAMETERS
    measured = parameters_from_scratch(architecture, SHAPES[size], vocabulary=len(tokenizer), context=512)
    assert model.num_parameters() == measured
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_a_model_that_is_too_large_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="at most 5,000,000"):
        build_model(tokenizer, ModelChoice(size="medium", context=4096), seed=0)


def test_the_tokenizer_is_the_same_for_the_same_text() -> None:
    first, second = (build_tokenizer(some_texts()) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()


def test_digits_capitals_tags_and_signs_of_a_board_stand_alone(tokenizer: Any) -> None:
    board = "X.O\n12-"
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(board)) == ["X", ".", "O", "Ċ", "1", "2", "-"]
    assert len(tokenizer.encode("<move>4</move>")) == 3


def test_a_message_that_comes_often_is_one_token_where_phrases_are_requested() -> None:
    said = [f"O plays {cell}." for cell in range(1, 10)]
    tokenizer = build_tokenizer([*said, "<move>4</move>"] * 9, pieces="phrases")
    assert [len(tokenizer.encode(message)) for message in said] == [1] * 9
    assert len(tokenizer.encode("<move>4</move>")) == 3
    assert tokenizer.decode(tokenizer.encode("O plays 77!")) == "O plays 77!"


def test_any_text_comes_back_from_its_tokens(tokenizer: Any) -> None:
    text = "ünï → 🙂\tXx  \r\n  <move>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_end_token_ends_every_turn_and_is_no_padding(tokenizer: Any) -> None:
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ids[-1] == tokenizer.eos_token_id
    assert ids.count(tokenizer.eos_token_id) == 2


def test_the_template_marks_what_the_assistant_wrote_and_its_end(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "You start."},
        {"role": "assistant", "content": "<move>4</move>"},
    ]
    made = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    learned = [token for token, mark in zip(made["input_ids"], made["assistant_masks"], strict=True) if mark]
    assert tokenizer.decode(learned) == "<move>4</move><|end|>"
