"""Prompts of a group are computed once: the same log-probabilities, gradients and runs."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

from tests.training.game import CHOICE, OPENING, Outcome
from workers.training import shared_prompts, trl_grpo
from workers.training.shared_prompts import can_share_prompts, score_completions

pytestmark = pytest.mark.filterwarnings("default")
PROMPT, COMPLETION = 7, 6


@pytest.fixture
def adapted() -> LlamaForCausalLM:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=80, hidden_size=48, intermediate_size=64, **sizes))
    add_fused_lm_head(base, outputs=("log_probs", "entropy"))
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    return model.eval()


def episodes() -> tuple[torch.Tensor, torch.Tensor]:
    """Two prompts, one with padding, with three completions each. The last column is padding everywhere."""
    tokens_BT = torch.randint(3, 80, (6, PROMPT + COMPLETION), generator=torch.Generator().manual_seed(1))
    tokens_BT[:, :PROMPT] = tokens_BT[[0, 1, 0, 1, 1, 0], :PROMPT]
    mask_BT = torch.ones_like(tokens_BT)
    mask_BT[[1, 3, 4], :3] = 0
    for row, length in enumerate((5, 2, 4, 5, 1, 3)):
        mask_BT[row, PROMPT + length :] = 0
    return tokens_BT, mask_BT


def test_log_probabilities_entropies_and_gradients_are_those_of_whole_episodes(adapted: LlamaForCausalLM) -> None:
    tokens_BT, mask_BT = episodes()
    labels_BT = tokens_BT.masked_fill(mask_BT == 0, -100)
    labels_BT[:, :PROMPT] = -100
    weight_BC = torch.randn(6, COMPLETION, generator=torch.Generator().manual_seed(2))
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    whole = adapted(
        input_ids=tokens_BT, attention_mask=mask_BT, position_ids=positions_BT, labels=labels_BT, fused_lm_head=True
    )
    expected = torch.autograd.grad((whole.log_probs[:, -COMPLETION:] * weight_BC).sum(), trained)
    shapes: list[tuple[int, int]] = []
    embedding = adapted.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    scored = score_completions(adapted, tokens_BT, mask_BT, COMPLETION)
    assert scored is not None
    assert shapes == [(2, PROMPT - 1), (6, COMPLETION)]  # the prompt's last token, and all used columns but the padding
    logps_BC, entropy_BC = scored
    assert torch.allclose(logps_BC, whole.log_probs[:, -COMPLETION:], atol=1e-5)
    assert torch.allclose(entropy_BC, whole.entropy[:, -COMPLETION:], atol=1e-5)
    gradients = torch.autograd.grad((logps_BC * weight_BC).sum(), trained)
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(gradients, expected, strict=True))


def test_prompts_that_differ_are_not_computed_apart(adapted: LlamaForCausalLM) -> None:
    tokens_BT = torch.arange(3, 3 + 39).view(3, 13)
    assert score_completions(adapted, tokens_BT, torch.ones_like(tokens_BT), COMPLETION) is None


def test_only_large_models_share_prompts(adapted: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not can_share_prompts(adapted)
    monkeypatch.setattr(shared_prompts, "LEAST_PARAMETERS", 0)
    assert can_share_prompts(adapted)
    adapted.get_base_model().gradient_checkpointing_enable()
    assert not can_share_prompts(adapted)


@pytest.mark.slow
def test_a_run_that_shares_prompts_is_the_same_run_and_resumes_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = CHOICE.model_copy(update={"steps": 3, "micro_batches": 3})
    openings = (OPENING, f"{OPENING} Quickly!")
    plain = Outcome(tmp_path / "plain", choice=choice, openings=openings)
    monkeypatch.setattr(shared_prompts, "LEAST_PARAMETERS", 0)
    with patch.object(trl_grpo, "score_completions", wraps=score_completions) as scored:
        shared = Outcome(tmp_path / "shared", choice=choice, openings=openings)
    assert scored.call_count == 9
    assert torch.allclose(shared.weights, plain.weights, atol=1e-4)
    assert all(step.figures["ratio/mean"] == pytest.approx(1, abs=1e-4) for step in shared.steps)
    Outcome(tmp_path / "cut", choice=choice, openings=openings, stop_after=2)
    resumed = Outcome(tmp_path / "cut", choice=choice, openings=openings)
    assert torch.equal(resumed.weights, shared.weights)
