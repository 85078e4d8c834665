"""Device, precision and vLLM's settings: on a CPU nothing changes; what is not there is refused with words."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from backend.domain.training.configuration import HardwareChoice, TrainingConfiguration, VllmChoice
from tests.training.game import CHOICE, COLUMNS, make_tiny
from workers.models.load import ModelUnusable
from workers.models.policy import LocalPolicy
from workers.models.sampling import Row, Sampler, VllmSampler
from workers.training.grpo_batch import GrpoRun
from workers.training.hardware import FLOAT32, Hardware, resolve_hardware, select_device
from workers.training.trl_grpo import grpo_arguments

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")


def grpo_run(tmp_path: Any, **fields: Any) -> GrpoRun:
    model, tokenizer = make_tiny()
    return GrpoRun(
        model=model,
        tokenizer=tokenizer,
        choice=CHOICE,
        columns=COLUMNS,
        seed=0,
        folder=tmp_path,
        save_every=5,
        play=lambda step, ordinals: [],
        on_step=lambda step: True,
        **fields,
    )


@ON_CPU
@pytest.mark.parametrize("has_bf16", [False, True])
def test_a_cpu_computes_in_float32_unless_bf16_is_requested_and_it_has_instructions(
    has_bf16: bool, monkeypatch: pytest.MonkeyPatch
):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has_bf16)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert resolve_hardware(HardwareChoice()) == FLOAT32
    assert resolve_hardware(HardwareChoice(precision="bf16")).is_bf16 is has_bf16
    assert resolve_hardware(HardwareChoice(gradient_checkpointing=True)).checkpoints_gradients


@ON_CPU
def test_a_run_that_wants_a_gpu_is_refused_where_there_is_none():
    with pytest.raises(ModelUnusable, match="requires a GPU"):
        select_device(HardwareChoice(device="cuda"))


def test_a_run_on_the_cpu_leaves_the_gpu_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    select_device(HardwareChoice(device="auto"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"  # noqa: TID251 - where torch looks
    select_device(HardwareChoice(device="cpu"))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # noqa: TID251


def test_the_defaults_ask_trl_for_nothing_of_a_gpu(tmp_path: Any):
    arguments = grpo_arguments(grpo_run(tmp_path))
    assert (arguments.bf16, arguments.gradient_checkpointing, arguments.use_vllm) == (False, False, False)


def test_the_choices_reach_trl(tmp_path: Any):
    hardware = Hardware(is_bf16=True, checkpoints_gradients=True)
    vllm = VllmChoice(mode="colocate", memory=0.4)
    arguments = grpo_arguments(grpo_run(tmp_path, hardware=hardware, vllm=vllm))
    assert (arguments.bf16, arguments.gradient_checkpointing) == (True, True)
    assert (arguments.use_vllm, arguments.vllm_mode, arguments.vllm_gpu_memory_utilization) == (True, "colocate", 0.4)
    there = VllmChoice(mode="server", server="http://127.0.0.1:8000")
    arguments = grpo_arguments(grpo_run(tmp_path, vllm=there))
    assert (arguments.vllm_mode, arguments.vllm_server_base_url) == ("server", "http://127.0.0.1:8000")


def test_a_server_must_be_named_and_vllm_wants_a_gpu():
    configuration = TrainingConfiguration(engine="vllm", vllm={"mode": "server"}, hardware={"device": "cpu"})
    problems = configuration.problems(scripts=["teacher"], levels=1)
    assert any("vllm.server" in problem for problem in problems)
    assert any("hardware.device" in problem for problem in problems)
    assert not TrainingConfiguration().problems(scripts=["teacher"], levels=1)
    with pytest.raises(ValidationError):
        VllmChoice(memory=1.5)


class Generation:
    """Does what TRL's vLLM generation promises, with a model on this machine."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.temperature, self.top_p, self.top_k, self.max_completion_length = 1.0, 1.0, 0, 0

    def generate(self, prompts: list[list[int]], images: None, num_generations: int) -> tuple[Any, ...]:
        assert num_generations == 1
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        sampler = Sampler(self.model, end=end, pad=pad, temperature=self.temperature)
        rows = [Row(list(prompt), np.random.default_rng(0)) for prompt in prompts]
        replies = sampler.sample(rows, [self.max_completion_length] * len(rows))
        logprobs = [[[value] for value in reply.logprobs] for reply in replies]
        return prompts, [reply.tokens for reply in replies], logprobs, None


def test_vllm_takes_the_samplers_place():
    model, tokenizer = make_tiny()
    policy = LocalPolicy(model, tokenizer, temperature=0.0)
    ours = policy.sampler
    prompts = [tokenizer.encode("Say <move>"), tokenizer.encode("Say")]
    limits = [3, 7]
    wanted = ours.sample([Row(list(ids), np.random.default_rng(1)) for ids in prompts], limits)
    generation = Generation(model, tokenizer)
    policy.sample_with(generation)
    assert isinstance(policy.sampler, VllmSampler)
    rows = [Row(list(ids), np.random.default_rng(1)) for ids in prompts]
    found = policy.sampler.sample(rows, limits)
    assert [reply.tokens for reply in found] == [reply.tokens for reply in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
    assert [len(row.tokens) - len(ids) for row, ids in zip(rows, prompts, strict=True)] == [
        len(reply.tokens) for reply in found
    ]
    policy.sampler.temperature = 0.7
    policy.sampler.sample(rows, limits)
    assert generation.temperature == 0.7


def test_bf16_sampling_still_gives_float32_log_probabilities():
    model, tokenizer = make_tiny()
    policy = LocalPolicy(model, tokenizer, temperature=0.0, is_bf16=True)
    reply = policy.sampler.sample([Row(tokenizer.encode("Say <move>"), np.random.default_rng(1))], [4])[0]
    assert all(value <= 0 for value in reply.logprobs)
