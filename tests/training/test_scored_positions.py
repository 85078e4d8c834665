"""Training computes logits only where a token is learned."""

import pytest
import torch
from trl.trainer import utils as trl_utils

import workers.training.trl_base  # noqa: F401 - it makes TRL do so
from tests.training.game import make_tiny

pytestmark = pytest.mark.filterwarnings("default")


def test_only_tokens_with_a_label_are_projected_and_all_agree_with_a_plain_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _ = make_tiny()
    tokens_BT = torch.randint(5, 60, (3, 12), generator=torch.Generator().manual_seed(0))
    labels_BT = tokens_BT.masked_fill(torch.arange(12) < 9, -100)
    labels_BT[1, 10:] = -100
    counts: list[int] = []
    original = trl_utils._ChunkedLogProbFunction.apply

    def counting(hidden_NH: torch.Tensor, *rest: object) -> object:
        counts.append(len(hidden_NH))
        return original(hidden_NH, *rest)

    monkeypatch.setattr(trl_utils._ChunkedLogProbFunction, "apply", counting)
    logits_BTV = model(input_ids=tokens_BT).logits[:, :-1].log_softmax(-1)
    expected = logits_BTV.gather(2, tokens_BT[:, 1:, None])[..., 0] * (labels_BT[:, 1:] != -100)
    expected.sum().backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    trl_utils.add_fused_lm_head(model)
    output = model(input_ids=tokens_BT, labels=labels_BT, fused_lm_head=True)
    output.log_probs.sum().backward()
    assert counts == [7]
    assert torch.allclose(output.log_probs, expected, atol=1e-5)
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-4)
