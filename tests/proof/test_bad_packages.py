"""A misbehaving package, evaluated and checked: pages show what failed and where; every episode is accounted for."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from backend.domain.vocabulary import RunStatus
from tests.proof.conftest import NAME, add_policy, asked, counted, evaluate, run_of, seen, start, work

pytestmark = pytest.mark.slow

Publish = Callable[..., str]
FLOOD = """
import os, threading
def flood():
    while True: os.write(1, b"x" * 65536)
threading.Thread(target=flood, daemon=True).start()
"""

DOES_NOT_START = {
    "does not import": ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
    "is not Python at run time": ("(lambda: None)(1)", "server/app.py"),
    "hangs": ("import time; time.sleep(600)", "did not answer within 4 s of its start"),
    "exits": ("print('good bye'); raise SystemExit(3)", "exit code 3 while it started"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "ended by signal 11"),
}
BREAKS = {
    "raises in reset": ({"in_reset": "raise ValueError('the dice are gone')"}, "reset: the dice are gone"),
    "raises in step": ({"in_step": "raise ValueError('the board is on fire')"}, "step: the board is on fire"),
    "hangs in step": ({"in_step": "import time; time.sleep(60)"}, "step: no answer within 1 s"),
    "exits in step": ({"in_step": "import os; os._exit(7)"}, "exit code 7"),
    "says NaN as a column": (
        {"in_step": "observation.metadata = {'rewards': {'gain': float('nan'), 'tidy': 0.0}}"},
        "reward column 'gain' is null (NaN and infinity arrive as null)",
    ),
    "says no column": ({"in_step": "observation.metadata = {'rewards': {'other': 1.0}}"}, "the environment sent other"),
    "says 9 MB": ({"in_step": "observation.text = 'x' * 9_000_000"}, "step: the answer is larger than 8,000,000 bytes"),
    "is over at once": ({"in_reset": "return CounterObservation(done=True)"}, "the episode ended at its reset"),
}
BEARABLE = {
    "floods its log": {"before_app": FLOOD},
    "prints a megabyte": {"in_step": "print('y' * 1_000_000)"},
    "says 5 MB": {"in_step": "observation.text = 'x' * 5_000_000"},
}


@pytest.mark.parametrize("how", DOES_NOT_START)
def test_a_package_that_does_not_start(ada: TestClient, publish: Publish, three: str, how: str) -> None:
    code, told = DOES_NOT_START[how]
    run_id = evaluate(ada, publish(before_app=code), three)

    assert run_of(run_id).status is RunStatus.FAILED
    page = seen(ada, f"/runs/{run_id}")
    assert "The environment cannot be played: " in page
    assert told in page
    assert counted(ada, run_id) == {}


@pytest.mark.parametrize("how", BREAKS)
def test_a_package_that_breaks_in_an_episode(ada: TestClient, publish: Publish, three: str, how: str) -> None:
    package, told = BREAKS[how]
    run_id = evaluate(ada, publish(**package), three)

    run = run_of(run_id)
    assert (run.status, run.summary["failed"], run.summary["reward"]) == (RunStatus.FAILED, 2, None)
    assert counted(ada, run_id) == {"failed": 2}
    for address in (f"/runs/{run_id}", f"/runs/{run_id}/rollouts", f"/runs/{run_id}/log"):
        assert told in seen(ada, address)
    rollout = asked(ada.get(f"/api/v1/rollouts?run_id={run_id}"))["items"][0]
    assert rollout["reward"] is None
    assert told in seen(ada, f"/rollouts/{rollout['id']}")


@pytest.mark.parametrize("how", BEARABLE)
def test_noise_is_tolerated(ada: TestClient, publish: Publish, three: str, how: str) -> None:
    run_id = evaluate(ada, publish(**BEARABLE[how]), three)
    assert run_of(run_id).status is RunStatus.COMPLETED
    assert counted(ada, run_id) == {"completed": 2}
    assert len(ada.get(f"/runs/{run_id}").content) < 200_000
    rollout = asked(ada.get(f"/api/v1/rollouts?run_id={run_id}"))["items"][0]
    assert len(ada.get(f"/rollouts/{rollout['id']}").content) < 400_000


def test_an_episode_that_never_ends_is_ended_by_its_limit(ada: TestClient, publish: Publish, three: str) -> None:
    run_id = evaluate(ada, publish(in_step="observation.done = False"), three)
    assert counted(ada, run_id) == {"completed": 2}
    assert "max turns" in seen(ada, f"/runs/{run_id}")


def test_a_reward_that_is_no_number_is_no_reward(ada: TestClient, publish: Publish, three: str) -> None:
    only_scalar = "observation.reward, observation.metadata = float('nan'), {}"
    run_id = evaluate(ada, publish(in_step=only_scalar), three)
    assert counted(ada, run_id) == {"failed": 2}
    assert "the environment sent nothing" in seen(ada, f"/runs/{run_id}")


def test_a_template_that_breaks_on_what_it_is_given(ada: TestClient, publish: Publish, three: str) -> None:
    divides = "  agent:\n    observation: '{{ 1 / total }}'"
    run_id = evaluate(ada, publish(manifest=lambda text: text.replace("  agent:", divides)), three)
    page = seen(ada, f"/runs/{run_id}")
    assert "agent.observation does not render: line 1: division by zero" in page


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ({"before_app": DOES_NOT_START["does not import"][0]}, "No module named 'a_module_that_is_not_there'"),
        ({"in_reset": "raise ValueError('the dice are gone')"}, "the dice are gone"),
        (BREAKS["says NaN as a column"][0], "gain"),
    ],
    ids=["does not import", "raises in reset", "says NaN"],
)
def test_the_checks_say_it_too(ada: TestClient, publish: Publish, package: dict[str, str], told: str) -> None:
    publish(**package)
    asked(ada.post(f"/api/v1/environments/{NAME}/versions/1/checks"))
    work()
    page = seen(ada, f"/environments/{NAME}/versions/1")
    assert told in page
    certificate = asked(ada.get(f"/api/v1/environments/{NAME}/versions/1/certificate"))
    assert certificate["status"] == "failed"
    assert {result["status"] for result in certificate["results"]} >= {"failed", "skipped"}


def test_a_policy_deleted_before_its_run_began(ada: TestClient, publish: Publish) -> None:
    policy = add_policy(ada, "short lived", kind="scripted", script="constant", constant="3")
    version_id = publish()
    run_id = start(ada, version_id, policy)
    assert ada.delete(f"/api/v1/policies/{policy}").status_code < 300
    work()

    assert run_of(run_id).status is RunStatus.FAILED
    page = seen(ada, f"/runs/{run_id}")
    assert "The policy short lived" in page
    assert "was deleted. Choose another one." in page
    refused = ada.post("/api/v1/evaluations", json={"version_id": version_id, "policy_id": policy})
    assert (refused.status_code, "short lived" in refused.json()["detail"]) == (409, True)
