"""Several processes for one run: how work is divided, what is refused, and what travels between them unchanged."""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from sqlalchemy.orm import Session

from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.capabilities import Capabilities, Gpu, OnlineWorker
from backend.domain.training.adapter import AdapterChoice
from backend.domain.training.configuration import HardwareChoice, TrainingConfiguration
from backend.domain.training.preflight.static import Plan, Site, checks_at_once, impossible
from backend.domain.vocabulary import CheckStatus, Queue, RunKind, Split
from backend.settings import PROJECT_ROOT
from tests.factories import make_manifest, make_run
from tests.training.game import MANIFEST, make_tiny
from tests.training.test_hardware import grpo_run
from tests.training.two_ranks import STARTS, Learned, learn
from workers.models.load import ModelUnusable, load_folder, start_from_base
from workers.rollouts.engine import GroupPlan
from workers.tasks.training import LAUNCHER, module_of
from workers.training.checkpoints import save_model
from workers.training.hardware import select_device
from workers.training.launch import failure_message, write_configuration
from workers.training.ranks import Ranks, StageOrder, fingerprint
from workers.training.trl_grpo import grpo_arguments, ratio_figures

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
ENGINES = {"torch": "2.13.0", "trl": "1.16.0"}
CPU = OnlineWorker("laptop", (Queue.GPU,), Capabilities(cpus=2, engines=ENGINES, cuda=False))
TWO = [Gpu(name="Big GPU", memory_mb=80_000)] * 2


def gpus(reached: int | None) -> OnlineWorker:
    return OnlineWorker("box", (Queue.GPU,), Capabilities(engines=ENGINES, cuda=True, gpus=TWO, cuda_devices=reached))


def configured(processes: int = 2, **choices: Any) -> TrainingConfiguration:
    hardware = {"processes": processes, **choices.pop("hardware", {})}
    return TrainingConfiguration.model_validate({"hardware": hardware, **choices})


@pytest.mark.parametrize(("count", "wanted"), [(6, [2, 2, 2]), (7, [3, 2, 2]), (1, [1, 0, 0]), (0, [0, 0, 0])])
def test_groups_are_divided_whole_and_in_order(count: int, wanted: list[int]) -> None:
    plans = [GroupPlan(task_of(MANIFEST, Split.TRAIN, number), number, (0, 1, 2)) for number in range(count)]
    parts = [plans[share] for share in Ranks(0, 3).shares(len(plans))]
    assert [len(part) for part in parts] == wanted
    assert [plan for part in parts for plan in part] == plans


def test_each_rank_learns_from_its_part_of_the_step(tmp_path: Path) -> None:
    assert Ranks(1, 3).shares(12) == [slice(0, 4), slice(4, 8), slice(8, 12)]
    run = grpo_run(tmp_path, ranks=Ranks(1, 3))
    assert grpo_arguments(run).per_device_train_batch_size * 3 == run.choice.episodes_per_step


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"grpo": {"tasks_per_step": 21}}, "grpo.tasks_per_step"),
        ({"grpo": {"tasks_per_step": 6, "group_size": 4, "micro_batches": 8}}, "grpo.micro_batches"),
        ({"sft": {"batch": 33}}, "sft.batch"),
        ({"engine": "unsloth"}, "transformers, not unsloth"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(choices: dict[str, Any], named: str) -> None:
    told = configured(**choices).problems(scripts=["teacher"], levels=1)
    assert len(told) == 1
    assert named in told[0]
    assert not configured(1, **choices).problems(scripts=["teacher"], levels=1)


def test_what_cannot_be_sharded_is_refused() -> None:
    sharded: dict[str, Any] = {"hardware": {"sharding": "fsdp2"}, "model": {"source": "base", "base": "some"}}
    assert not configured(2, **sharded).problems(scripts=["teacher"], levels=1)
    (told,) = configured(1, **sharded).problems(scripts=["teacher"], levels=1)
    assert "Raise hardware.processes" in told
    (told,) = configured(2, **sharded, adapter={"kind": "qlora"}).problems(scripts=["teacher"], levels=1)
    assert "4-bit base cannot be sharded" in told


def test_a_run_without_the_stage_need_not_divide_it() -> None:
    odd = {"grpo": {"tasks_per_step": 21}, "recipe": "sft"}
    assert not configured(**odd).problems(scripts=["teacher"], levels=1)


def test_more_processes_than_gpus_are_refused() -> None:
    assert not impossible(configured(2), [gpus(2)])
    (finding,) = impossible(configured(3), [gpus(None), CPU])
    assert "largest worker has 2 GPUs" in finding.sentence
    (finding,) = impossible(configured(2), [gpus(1)])
    assert "largest worker has 1 GPU." in finding.sentence
    assert not impossible(configured(3, hardware={"device": "cpu"}), [gpus(2)])


def test_a_worker_with_fewer_gpus_refuses_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    select_device(HardwareChoice())
    with pytest.raises(ModelUnusable, match="torch reaches 1 on this worker"):
        select_device(HardwareChoice(processes=2))


def test_on_a_cpu_it_shows_what_several_processes_are_for() -> None:
    def told(configuration: TrainingConfiguration) -> list[str]:
        plan = Plan(configuration, [Site(make_manifest("game"), CheckStatus.PASSED)], [CPU])
        return [finding.advice or "" for finding in checks_at_once(plan) if finding.name == "processes"]

    assert told(configured(1)) == []
    assert "use them only for testing" in told(configured(2))[0]


def test_the_launcher_understands_its_configuration(tmp_path: Path) -> None:
    read = load_config_from_file(str(write_configuration(configured(4, hardware={"device": "cpu"}), tmp_path)))
    assert (read.distributed_type.value, read.num_processes, read.use_cpu) == ("MULTI_GPU", 4, True)
    assert (read.main_process_port, read.mixed_precision) == (0, "no")


def test_a_run_in_several_processes_begins_with_the_launcher(session: Session) -> None:
    stored = configured(2).resolved()
    assert module_of(make_run(session, kind=RunKind.TRAINING, configuration=stored)) == LAUNCHER


def test_why_a_process_ended_is_said_in_a_line() -> None:
    assert failure_message({"message": "BrokenStep: the weights\n of rank 1", "extraInfo": {}}) == (
        "BrokenStep: the weights of rank 1"
    )
    assert failure_message("Signal 9 (SIGKILL) received") == "Signal 9 (SIGKILL) received"


def test_orders_arrive_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(Ranks, "_send", lambda _, number, value: sent.append(value))
    monkeypatch.setattr(Ranks, "receive", lambda _, number=0: json.loads(json.dumps(sent[-1])))
    warm_up = StageOrder("sft", "weights", "folder", False, examples="examples", steps=12, seed=3, save_every=10)
    for order in (warm_up, StageOrder("grpo", "weights", "folder", True, micro_batches=2)):
        Ranks(0, 2).decide(partial(asdict, order))
        assert StageOrder(**Ranks(1, 2).receive()) == order


def test_weights_that_learned_apart_are_distinguished() -> None:
    (one, _), (other, _) = make_tiny(), make_tiny()
    assert fingerprint(one) == fingerprint(other)
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-3
    assert fingerprint(one) != fingerprint(other)


def test_ratios_of_all_ranks_count_by_their_tokens() -> None:
    assert ratio_figures([(3.0, 3.0, 1.5, 0.0), (1.0, 1.0, 1.2, 0.0)]) == {"ratio/mean": 1.0, "ratio/max": 1.5}
    assert ratio_figures([(4.0, 2.0, 3.0, 1.0), (0.0, 0.0, 0.0, 0.0)], is_weighted=True) == {
        "ratio/mean": 2.0,
        "ratio/max": 3.0,
        "ratio/truncated": 0.5,
    }
    assert ratio_figures([(0.0, 0.0, 0.0, 0.0)]) == {"ratio/mean": 1.0, "ratio/max": 1.0}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_two_processes_talk_and_learn_what_one_learns(tmp_path: Path) -> None:
    """Episodes come back as they were, and what befell a follower is raised at the leader. Curves and weights are those
    of one process, for all weights, and for a sharded adapter, also after a resume."""
    model, tokenizer = make_tiny()
    save_model(model, tokenizer, tmp_path / "whole-start")
    save_model(
        *start_from_base(str(tmp_path / "whole-start"), AdapterChoice(kind="lora", rank=4), seed=1),
        tmp_path / "adapter-start",
    )
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    command = [sys.executable, "-m", "tests.training.two_ranks", str(tmp_path), str(port)]
    with ExitStack() as stack:
        ranks = []
        for number in range(2):
            rank = subprocess.Popen([*command, str(number)], cwd=PROJECT_ROOT, stderr=subprocess.PIPE, text=True)
            ranks.append(stack.enter_context(rank))
            stack.callback(rank.kill)
        alone = {name: learn(tmp_path / f"{name}-alone", tmp_path / f"{name}-start") for name in STARTS}
        for rank in ranks:
            _, told = rank.communicate(timeout=240)
            assert rank.returncode == 0, told
    for name in STARTS:
        together = Learned(*json.loads((tmp_path / f"{name}.json").read_text()))
        for ours, theirs in zip(together.grpo + together.sft, alone[name].grpo + alone[name].sft, strict=True):
            for curve in {"loss", "grad_norm", "entropy", "divergence"} & theirs.keys():
                assert ours[curve] == pytest.approx(theirs[curve], rel=1e-3, abs=1e-5), (name, curve)
        assert len(together.grpo) == 2
        for checkpoint in ("grpo", "sft-1", "sft-2")[: 3 if together.sft else 1]:
            one, two = (load_folder(tmp_path / folder / checkpoint)[0] for folder in (f"{name}-alone", name))
            weights = dict(one.named_parameters())
            for weight_name, weight in two.named_parameters():
                assert weight.detach() == pytest.approx(weights[weight_name].detach(), abs=1e-3), (name, checkpoint)
