"""Measure training on a GPU: precision, adapters, engines and several processes.

Peers: none; compare the other parts with the first one, float32 on one device.
Units: output tokens/s, seconds per step and its parts, peak memory in MB; the peer is the preflight's estimate.
Repeats: 1 run of each part, in a fresh process.

Parts that this machine cannot run are listed with the reason. Engines whose pins conflict need separate worker flavors:
`make gpu-proof WORKER=gpu-vllm` and `WORKER=gpu-unsloth`. A machine without a GPU runs the first part and
the two processes, with a model from scratch.
"""

import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import PreflightStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import MetricPoint, Run
from backend.settings import PROJECT_ROOT
from backend.training.tables import Preflight
from benchmarks.harness import Measure, Options, create_training_run, import_built_in, installation, wait_for
from workers.models.vllm import program
from workers.tasks.training import PREFLIGHT_MODULE, module_of

REPEATS = 1
LIMIT_SECONDS = 4 * 3600
ENVIRONMENT = "arithmetic_ladder"
SKIPPED_STEPS = 2
"""First steps, which load and compile."""
PORT = 8127
SERVER_SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class Part:
    """A way to train."""

    name: str
    choices: Mapping[str, Any]
    gpus: int = 1
    """GPUs that it needs; 0: a CPU will do."""
    module: str = ""
    """Package that it needs."""
    flavour: str = "gpu"
    """Worker flavor that has the package."""
    is_served: bool = False
    """It samples from a running vLLM server, which needs another GPU."""

    @property
    def obstacle(self) -> str:
        """Return why this machine cannot run the part, or an empty string."""
        count = torch.cuda.device_count()
        if count < self.gpus:
            return f"needs {'a GPU' if self.gpus == 1 else f'{self.gpus} GPUs'}; torch reaches {count or 'none'}"
        if self.module and find_spec(self.module) is None:
            return f"{self.module} is not installed: make gpu-proof WORKER={self.flavour}"
        if self.choices.get("hardware", {}).get("precision") == "bf16" and not torch.cuda.is_bf16_supported():
            return "this GPU does not support bf16"
        return ""


LORA, QLORA = {"kind": "lora"}, {"kind": "qlora"}
FLOAT32, BF16 = {"precision": "float32"}, {"precision": "bf16"}
SERVER = {"mode": "server", "server": f"http://127.0.0.1:{PORT}"}
PARTS = (
    Part("float32", {"hardware": FLOAT32}, gpus=0),
    Part("bf16", {"hardware": BF16}),
    Part("bf16, gradient checkpointing", {"hardware": BF16 | {"gradient_checkpointing": True}}),
    Part("LoRA", {"hardware": BF16, "adapter": LORA}),
    Part("QLoRA", {"hardware": BF16, "adapter": QLORA}, module="bitsandbytes"),
    Part("vLLM, colocate", {"hardware": BF16, "engine": "vllm"}, module="vllm", flavour="gpu-vllm"),
    Part(
        "vLLM, server",
        {"hardware": BF16, "engine": "vllm", "vllm": SERVER},
        gpus=2,
        module="vllm",
        flavour="gpu-vllm",
        is_served=True,
    ),
    Part(
        "vLLM, adapter swaps",
        {"hardware": BF16, "adapter": LORA, "engine": "vllm", "vllm": SERVER | {"mode": "lora"}},
        gpus=2,
        module="vllm",
        flavour="gpu-vllm",
        is_served=True,
    ),
    Part(
        "Unsloth, LoRA",
        {"hardware": BF16, "adapter": LORA, "engine": "unsloth"},
        module="unsloth",
        flavour="gpu-unsloth",
    ),
    Part("two processes", {"hardware": FLOAT32 | {"processes": 2}}, gpus=2 if torch.cuda.is_available() else 0),
    Part(
        "two processes, FSDP2",
        {"hardware": FLOAT32 | {"processes": 2, "sharding": "fsdp2"}},
        gpus=2 if torch.cuda.is_available() else 0,
    ),
)


def measure(options: Options) -> Iterator[Measure]:
    if not torch.cuda.is_available():
        yield Measure("GPU", "", (), note="none: only the parts for a CPU run, with a model from scratch")
    with installation():
        version = import_built_in(ENVIRONMENT)
        for part in PARTS:
            if part.obstacle:
                yield Measure(part.name, "", (), note=f"skipped: {part.obstacle}")
            else:
                yield from _measure_part(part, version, options)


def configuration_of(part: Part, options: Options) -> TrainingConfiguration:
    """The preset for an instruct model on a GPU, else a model from scratch, with the settings of the part."""
    steps = options.size(12, 4)
    settings: dict[str, Any] = {
        "recipe": "grpo",
        "heldout": {"every": steps, "tasks": 8},
        "checkpoints": {"every": steps},
    }
    if torch.cuda.is_available():
        preset = PRESETS["instruct-lora"].configuration
        settings |= {"model": preset.model.model_dump(), "concurrency": preset.concurrency}
        grpo = preset.grpo.model_dump(exclude_unset=True)
    else:
        settings["model"] = {"source": "scratch"}
        grpo = {"tasks_per_step": 8, "group_size": 4}
    return TrainingConfiguration.model_validate(settings | dict(part.choices) | {"grpo": {**grpo, "steps": steps}})


def _measure_part(part: Part, version: EnvironmentVersion, options: Options) -> Iterator[Measure]:
    configuration = configuration_of(part, options)
    try:
        with _server_for(part, configuration):
            estimated_mb, estimated_seconds = _estimate(version, configuration)
            curves = _train(version, configuration)
    except RuntimeError as error:
        yield Measure(part.name, "", (), note=f"failed: {' '.join(str(error).split())[-300:]}")
        return
    spent = {name.removeprefix("seconds/"): value for name, value in curves.items() if name.startswith("seconds/")}
    split = ", ".join(f"{name} {1000 * seconds:,.0f} ms" for name, seconds in spent.items() if seconds > 0.0005)
    yield Measure(f"{part.name}: sampled", "tokens/s", [curves["tokens_per_second"]], higher_is_better=True)
    yield Measure(f"{part.name}: step", "s", [curves["seconds/step"]], estimated_seconds, note=split)
    note = "" if torch.cuda.is_available() else "resident memory, with freed memory that was not returned"
    yield Measure(f"{part.name}: memory", "MB", [curves["memory/peak_mb"]], estimated_mb, note=note)


def _estimate(version: EnvironmentVersion, configuration: TrainingConfiguration) -> tuple[list[float], list[float]]:
    """Run the preflight. Returns the MB and the seconds of a step that it expects, each in a list, empty if unknown."""
    with transaction() as session:
        row = Preflight(version_id=version.id, configuration=configuration.resolved())
        session.add(row)
        session.flush()
        preflight_id = row.id
    _run_module(PREFLIGHT_MODULE, preflight_id)
    with transaction() as session:
        row = session.get_one(Preflight, preflight_id)
        if row.status is not PreflightStatus.COMPLETED:
            raise RuntimeError(f"the preflight ended {row.status}: {row.reason}")
        found = {finding["name"]: finding.get("evidence", {}) for finding in row.findings}
    memory, time = found.get("memory", {}).get("bytes"), found.get("time", {})
    seconds = (time.get("sampling", 0.0) + time.get("GRPO updates", 0.0)) / configuration.grpo.steps
    return [memory / 2**20] if memory else [], [seconds] if seconds else []


def _train(version: EnvironmentVersion, configuration: TrainingConfiguration) -> dict[str, float]:
    """Train in a separate process. Returns the median of each curve, without the first steps."""
    run = create_training_run(version, configuration)
    _run_module(module_of(run), run.id)
    with transaction() as session:
        ended = session.get_one(Run, run.id)
        if ended.status is not RunStatus.COMPLETED:
            raise RuntimeError(f"the run ended {ended.status}: {ended.reason}")
        points = select(MetricPoint.name, MetricPoint.value).where(
            MetricPoint.run_id == run.id, MetricPoint.step > SKIPPED_STEPS
        )
        curves: dict[str, list[float]] = {}
        for name, value in session.execute(points):
            curves.setdefault(name, []).append(value or 0.0)
    return {name: statistics.median(values) for name, values in sorted(curves.items())}


def _run_module(module: str, argument: uuid.UUID) -> None:
    command = [sys.executable, "-m", "workers.begin", module, str(argument)]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr[-1500:]}")


@contextmanager
def _server_for(part: Part, configuration: TrainingConfiguration) -> Iterator[None]:
    """Run a vLLM server on the last GPU while the part trains, if it samples from one: TRL's, or one for adapters."""
    if not part.is_served:
        yield
        return
    base, address = configuration.model.base, ["--host", "127.0.0.1", "--port", str(PORT)]
    command = [sys.executable, "-m", "trl.scripts.vllm_serve", "--model", base, "--gpu_memory_utilization", "0.8"]
    variables = {"CUDA_VISIBLE_DEVICES": str(torch.cuda.device_count() - 1)}
    if configuration.vllm.mode == "lora":
        command = [program() or "vllm", "serve", base, "--enable-lora", "--logprobs-mode", "processed_logprobs"]
        command += ["--max-lora-rank", "64"]
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    process = subprocess.Popen(
        [*command, *address],
        env={**os.environ, **variables},  # noqa: TID251 - for a child
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"http://127.0.0.1:{PORT}/health", process, SERVER_SECONDS)
        yield
    finally:
        process.terminate()
        process.wait(60)
