"""Training computes logits only where a token is learned.

TRL has no setting for this on a CPU, so `trl_base` replaces a private function of it. If TRL moves or renames that
function, or uses it elsewhere, these tests fail.
"""

import inspect
import re

import pytest
import torch
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

import workers.training.trl_base  # noqa: F401 - it makes TRL do so
from tests.training.game import make_tiny

pytestmark = pytest.mark.filterwarnings("default")


def test_the_private_function_of_trl_is_used_only_where_it_is_replaced() -> None:
    calls = [line for line in inspect.getsource(trl_utils).splitlines() if re.search(r"\b_use_triton\(", line)]
    assert [line.strip() for line in calls] == ["compact = _use_triton(hidden_states.device)"]
    assert trl_utils._use_triton(torch.device("cpu"))
    assert chunked_logprob._use_triton is not trl_utils._use_triton  # the kernels still ask for a GPU
    assert not chunked_logprob._use_triton(torch.device("cpu"))


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
