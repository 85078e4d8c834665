"""Measure how fast a model of 135 million parameters writes replies on the CPU.

Peer: transformers' `generate`.
Units: tokens/s and tokens per CPU second.
Repeats: 3 batches of 32 replies, both sides in alternation.

The model has the shape of SmolLM2-135M and an adapter of rank 16, with random weights: its tokens are noise, and cost
what others cost. All replies have 48 tokens. The prompts have 100 tokens, of which the first 60 are the same, like the
instructions of an environment; as groups, 4 prompts are answered 8 times each, as in a step of GRPO. `generate` has the
same model, adapter, precision and number of threads: one for each core.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import Measure, Options
from workers.models.sampling import Row, Sampler

REPEATS = 3
BATCH, PROMPT, SHARED, REPLY, GROUP = 32, 100, 60, 48, 8
VOCABULARY = 49152

Speeds = tuple[float, float]
"""Tokens per second, and per CPU second."""


def measure(options: Options) -> Iterator[Measure]:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = _model(layers=options.size(30, 2))
    reply = options.size(REPLY, 4)
    distinct_BT = torch.randint(100, VOCABULARY, (BATCH, PROMPT), generator=torch.Generator().manual_seed(0))
    distinct_BT[:, :SHARED] = distinct_BT[0, :SHARED]
    batches = {"different prompts": distinct_BT, "groups": distinct_BT[: BATCH // GROUP].repeat_interleave(GROUP, 0)}
    for precision, is_bf16 in (("float32", False), ("bf16", True)):
        for kind, prompts_BT in batches.items():
            ours: list[Speeds] = []
            theirs: list[Speeds] = []
            for _ in range(options.repeats):
                ours.append(_timed(lambda p=prompts_BT, b=is_bf16: _sample(model, p, reply, b), reply))
                theirs.append(_timed(lambda p=prompts_BT, b=is_bf16: _generate(model, p, reply, b), reply))
            for place, unit in enumerate(("tokens/s", "tokens/CPU s")):
                yield Measure(
                    f"{kind}, {precision}",
                    unit,
                    [each[place] for each in ours],
                    [each[place] for each in theirs],
                    higher_is_better=True,
                    target_ratio=2.0,
                )


def _model(*, layers: int) -> Any:
    configuration = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    base = LlamaForCausalLM(configuration)
    adapter = LoraConfig(r=16, lora_alpha=32.0, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(base, adapter).eval()


def _timed(write: Callable[[], None], reply: int) -> Speeds:
    began, used = time.perf_counter(), time.process_time()
    write()
    tokens = BATCH * reply
    return tokens / (time.perf_counter() - began), tokens / (time.process_time() - used)


def _sample(model: Any, prompts_BT: torch.Tensor, reply: int, is_bf16: bool) -> None:
    sampler = Sampler(model, end=-1, pad=2, is_bf16=is_bf16)  # no reply ends early
    rows = [Row(prompt, np.random.Generator(np.random.PCG64(seed))) for seed, prompt in enumerate(prompts_BT.tolist())]
    sampler.sample(rows, [reply] * len(rows))


def _generate(model: Any, prompts_BT: torch.Tensor, reply: int, is_bf16: bool) -> None:
    options = {"max_new_tokens": reply, "min_new_tokens": reply, "do_sample": True, "top_k": 0, "temperature": 1.0}
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        model.generate(input_ids=prompts_BT, attention_mask=torch.ones_like(prompts_BT), **options)
