"""Several machines for one run: a node that joins late or never, a rank that hangs, and what a run of several nodes
needs."""

import json
import os
import shutil
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.runs.capabilities import Capabilities, OnlineWorker
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.static import impossible
from backend.domain.training.requirements import able, of_training
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus
from backend.runs.tables import RunLogLine
from backend.settings import Settings
from proctor_sandbox.memory import descendants
from tests.factories import make_policy, make_run
from workers.storage.recorder import RunRecorder
from workers.training import heartbeats, launch
from workers.training.assignment import training_folder
from workers.training.heartbeats import Activity, Sign, SignWatch, read_signs, suspects
from workers.training.nodes import NodesMissing, answer, call_file, gathered, read_call

ENGINES = {"torch": "2.13.0", "trl": "1.16.0"}


def settings(data: Path, **fields: Any) -> Settings:
    return Settings(data=data, **{"nodes": 3, "nodes_address": "node-0:29500", **fields})


def configured(**hardware: Any) -> TrainingConfiguration:
    return TrainingConfiguration.model_validate({"hardware": hardware})


def worker(name: str, nodes: int) -> OnlineWorker:
    return OnlineWorker(name, (Queue.GPU,), Capabilities(engines=ENGINES, cuda=False, nodes=nodes))


def test_a_node_that_does_not_join_is_named(tmp_path: Path) -> None:
    told = settings(tmp_path)
    waited: list[list[int]] = []

    def report(missing: list[int]) -> bool:
        waited.append(missing)
        if call := read_call(told):
            answer(settings(tmp_path, node_rank=1), call)
        return True

    late = pytest.raises(NodesMissing, match=r"Node 2 of 3 did not join within 0\.5 seconds")
    with late, gathered(told, uuid.uuid4(), 3, report, 0.5):
        raise AssertionError("one is missing")
    assert waited[0] == [1, 2]
    assert waited[-1] == [2]
    assert not list(call_file(told).parent.iterdir())


def test_a_node_that_joins_late_is_waited_for_and_leaves_at_the_end(tmp_path: Path) -> None:
    told, run_id = settings(tmp_path, nodes=2), uuid.uuid4()

    def join_late() -> None:
        time.sleep(0.3)
        call = read_call(told)
        assert call is not None
        answer(settings(tmp_path, nodes=2, node_rank=1), call)

    late = threading.Thread(target=join_late)
    late.start()
    with gathered(told, run_id, 2, lambda _: True, 20) as are_here:
        call = read_call(told)
        assert are_here
        assert call is not None
        assert (call.run, call.nodes) == (str(run_id), 2)
    late.join()
    assert read_call(told) is None


def test_a_run_that_is_stopped_waits_for_no_node(tmp_path: Path) -> None:
    with gathered(settings(tmp_path), uuid.uuid4(), 3, lambda _: False) as are_here:
        assert not are_here


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"node_rank": 3}, "PROCTOR_NODE_RANK=3"),
        ({"nodes_address": ""}, "host:port"),
        ({"nodes_address": "a b:1"}, "host:port"),
    ],
)
def test_a_place_among_nodes_that_cannot_be_is_refused(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        settings(tmp_path, **fields)


def test_each_node_starts_its_own_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = configured(processes=4, nodes=2, device="cpu")
    for rank in (0, 1):
        monkeypatch.setattr(launch, "get_settings", lambda rank=rank: settings(tmp_path, nodes=2, node_rank=rank))
        read = yaml.safe_load(launch.write_configuration(choice, tmp_path).read_text())
        assert (read["num_machines"], read["machine_rank"], read["num_processes"]) == (2, rank, 4)
        assert (read["main_process_ip"], read["main_process_port"]) == ("node-0", 29500)
    assert choice.hardware.processes_per_node == 2


def test_a_run_of_several_nodes_waits_for_a_worker_that_leads_them() -> None:
    choice, offers = configured(processes=4, nodes=2), [worker("alone", 1), worker("pair", 2)]
    assert able(of_training(choice), offers, Queue.GPU) == ["pair"]
    (finding,) = impossible(choice, [worker("alone", 1)])
    assert "needs 2 nodes" in finding.sentence
    assert not impossible(choice, offers)
    (told,) = configured(processes=2, nodes=3).problems(scripts=["teacher"], levels=1)
    assert "divided among 3 nodes" in told


def test_the_ranks_that_others_wait_for_are_found(tmp_path: Path) -> None:
    (tmp_path / heartbeats.FOLDER).mkdir(parents=True)
    waiting, busy = Activity(), Activity()
    busy.begin("playing step 3")
    waiting.report(0, tmp_path)
    busy.report(1, tmp_path)
    with waiting.during("waiting for rank 1"):
        waiting.report(0, tmp_path)
    signs = read_signs(tmp_path)
    assert [sign.doing for sign in signs] == ["waiting for rank 1", "playing step 3"]
    assert [str(sign) for sign in suspects(signs)] == ["rank 1: playing step 3 for 0 s"]
    assert suspects([Sign(0, "learning in step 3", 9.0), Sign(1, "learning in step 3", 9.0)]) == []
    (tmp_path / heartbeats.FOLDER / "2").write_text("{")
    assert read_signs(tmp_path) == signs
    shutil.rmtree(tmp_path / heartbeats.FOLDER)
    busy.report(1, tmp_path)
    assert not (tmp_path / heartbeats.FOLDER).exists()


def test_a_sign_that_goes_on_is_none_of_a_hung_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / heartbeats.FOLDER).mkdir(parents=True)
    monkeypatch.setattr(heartbeats, "REPORT_SECONDS", 0.02)
    ended = threading.Event()
    watch = SignWatch(tmp_path, 0.5, ended.set)
    watch.start()
    activity, other = Activity(), Activity()
    other.report(1, tmp_path)
    deadline = time.monotonic() + 20
    while not ended.is_set() and time.monotonic() < deadline:
        activity.report(0, tmp_path)
        time.sleep(0.02)
    watch.leave()
    assert (watch.silent or "").startswith("rank 1 has given no sign of life")


def test_a_rank_that_hangs_before_its_first_sign_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / heartbeats.FOLDER).mkdir(parents=True)
    monkeypatch.setattr(heartbeats, "REPORT_SECONDS", 0.02)
    ended = threading.Event()
    watch = SignWatch(tmp_path, 60, ended.set, count=3, start_limit=0.2)
    Activity().report(1, tmp_path)
    watch.start()
    assert ended.wait(20)
    watch.leave()
    assert (watch.silent or "").startswith("ranks 0, 2 gave no sign of life within 0 seconds of the start")
    assert "hardware.start_timeout" in (watch.silent or "")


@pytest.mark.slow
@pytest.mark.timeout(300)  # two processes start twice, which takes minutes on busy cores
@pytest.mark.filterwarnings("default")
def test_a_rank_that_hangs_ends_the_attempt_and_is_named(
    installation: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stopped process of two. The worker's job tries again, and the run continues from its last saved state."""
    choice = configured(processes=2, device="cpu", rank_timeout=2)
    with transaction() as session:
        policy = make_policy(session, kind=PolicyKind.LOCAL)
        fields = {"configuration": choice.resolved(), "status": RunStatus.RUNNING, "ended_at": None}
        run_id = make_run(session, policy=policy, kind=RunKind.TRAINING, **fields).id
    folder = training_folder(run_id)
    (folder / heartbeats.FOLDER).mkdir(parents=True)
    monkeypatch.setattr(launch, "MODULE", "tests.training.idle_rank")
    for name in (heartbeats.LAUNCHER, "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # restored at the end

    def stop_one() -> None:
        deadline = time.monotonic() + 60
        while len(read_signs(folder)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in descendants(os.getpid()):
            if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGSTOP)

    stopping = threading.Thread(target=stop_one)
    stopping.start()
    assert launch.launch(run_id, choice, RunRecorder(run_id)) == launch.TRY_AGAIN
    stopping.join()
    with transaction() as session:
        (line,) = session.scalars(select(RunLogLine.message).where(RunLogLine.run_id == run_id))
    assert line.startswith("rank 1 has given no sign of life for")
    assert line.endswith("Last activity: learning in step 3")
    assert line in capfd.readouterr().err
    assert json.loads((folder / heartbeats.FOLDER / "0").read_text())["rank"] == 0
