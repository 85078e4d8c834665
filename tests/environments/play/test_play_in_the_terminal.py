"""`proctor env play` and `proctor env try`, with a worker that answers while the command waits."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus
from backend.environments.service import create_environment
from tests.envhost_fixture import package_files
from tests.environments.play.conftest import runs, work
from tests.ops.commands import Command, Result, proctor, server

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow


@pytest.fixture
def worker(installed: None, proctor: Command) -> Command:
    """The command line in a thread; jobs need the main thread."""

    def run(*arguments: str) -> Result:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(proctor, *arguments)
            while not asked.done():
                work()
                time.sleep(0.02)
        return asked.result()

    return run


@pytest.fixture
def draft(installed: None) -> None:
    with transaction() as session:
        create_environment(session, None, "counter", package_files("counter"))


@pytest.mark.usefixtures("counter")
def test_a_policy_plays_to_the_end_and_is_named_at_its_turns(worker: Command) -> None:
    played = worker("env", "play", "counter", "--index", "0", "--policy", "gold")
    assert played.status == 0, played.err
    assert "1 gold: 3" in played.out
    assert "done: reward 3.25" in played.out
    assert str(runs()[-1].status) == "completed"


@pytest.mark.usefixtures("counter")
def test_a_policy_that_is_not_there_is_reported_and_the_episode_left(worker: Command) -> None:
    refused = worker("env", "play", "counter", "--policy", "nobody")
    assert refused.status != 0
    assert "Choose a policy that can play" in refused.err


@pytest.mark.usefixtures("counter")
def test_turns_without_a_policy_are_wrong_use(worker: Command) -> None:
    assert worker("env", "play", "counter", "--turns", "2").status == 2


@pytest.mark.usefixtures("draft")
def test_a_draft_is_tried_by_replies_and_by_a_script(worker: Command) -> None:
    tried = worker("env", "try", "counter", "--index", "0", "--reply", "1", "--reply", "2")
    assert (tried.status, "done: reward" in tried.out) == (0, True), tried.out + tried.err
    told = worker("env", "try", "counter", "--script", "gold", "--json").out
    answer = json.loads(told[told.index("{\n") :])["answer"]  # the worker's own log stands before it
    assert (answer["status"], answer["columns"]) == ("completed", [["gain", 3.0, 1.0], ["tidy", 0.5, 0.5]])
    assert runs() == []


def test_a_folder_is_pushed_and_tried_and_what_breaks_ends_with_1(worker: Command, tmp_path: Path) -> None:
    for path, text in package_files("dice", in_step="raise ValueError('on fire')").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    broken = worker("env", "try", str(tmp_path), "--reply", "1")
    assert broken.status == 1
    assert "on fire" in broken.out
    (tmp_path / "openenv.yaml").write_text("name: dice\n")
    assert worker("env", "try", str(tmp_path)).status == 2


def test_a_watched_folder_is_tried_again_after_each_change(worker: Command, tmp_path: Path) -> None:
    def write(**package: str) -> None:
        for path, text in package_files("dice", **package).items():  # type: ignore[arg-type]
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    def wait_for_tries(count: int) -> None:
        ended = select(func.count()).select_from(Job).where(Job.status == JobStatus.DONE)
        for _ in range(600):
            with transaction() as session:
                if session.scalar(ended) == count:
                    return
            time.sleep(0.05)

    def change() -> None:
        wait_for_tries(2)  # a reset and a script
        write(in_step="raise ValueError('on fire')")
        wait_for_tries(4)
        (tmp_path / "openenv.yaml").unlink()

    write()
    assert worker("env", "try", str(tmp_path), "--watch", "--json").status == 2
    changing = threading.Thread(target=change)
    changing.start()
    watched = worker("env", "try", str(tmp_path), "--watch")
    changing.join()
    assert watched.status == 2
    assert "done: reward" in watched.out
    assert "on fire" in watched.out
    assert "no openenv.yaml anymore" in watched.err
