"""A worker's report on its machine, and how it learns about torch from a child process."""

import subprocess
import sys

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.core.tables import Worker
from backend.settings import PROJECT_ROOT
from workers.tasks import heartbeat
from workers.tasks.heartbeat import WorkerHeartbeat, installed_engines, machine_capabilities, probe_torch


def _reported() -> Worker:
    with transaction() as session:
        return session.scalars(select(Worker)).one()


def test_engines_are_reported_with_their_versions_and_without_importing_them():
    engines = installed_engines()
    assert {"torch", "trl", "transformers", "peft"} <= engines.keys()
    assert all(version[0].isdigit() for version in engines.values())


@pytest.mark.slow
def test_asking_for_engines_imports_none():
    program = (
        "import sys; from workers.tasks.heartbeat import installed_engines, machine_capabilities;"
        "machine_capabilities(installed_engines()); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PROJECT_ROOT)
    assert not {"torch", "trl", "transformers", "peft"} & set(done.stdout.split())
    assert "workers.tasks.heartbeat" in done.stdout.split()


def test_a_machine_without_engines_is_of_the_core_flavour(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heartbeat, "ENGINES", ())
    assert machine_capabilities(installed_engines())["flavour"] == "core"
    assert installed_engines() == {}


@pytest.mark.slow
def test_torch_states_in_a_separate_process_whether_it_reaches_a_gpu():
    told = probe_torch()
    program = "import torch; has = torch.cuda.is_available(); print(has, has and torch.cuda.is_bf16_supported())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"{told['cuda']} {told['bf16']}" == done.stdout.strip()


def test_what_torch_said_is_in_the_next_report(installation: None):
    worker = WorkerHeartbeat("gpu@test", ["gpu"])
    worker.report()
    assert "cuda" not in _reported().capabilities
    worker.add_probed({"cuda": True, "bf16": True, "converter": "convert_hf_to_gguf.py"})
    worker.report()
    told = _reported().capabilities
    assert (told["cuda"], told["bf16"]) == (True, True)
    assert told["engines"]["llama.cpp"] == "convert_hf_to_gguf.py"
    assert told["engines"].keys() > {"llama.cpp"}


def test_a_machine_that_does_not_answer_leaves_it_unsaid(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heartbeat, "MACHINE_MODULE", "no.such.module")
    assert probe_torch() == {}
