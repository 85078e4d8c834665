"""What every showcase does: train, examine, follow a run and show how far it is, go on where an earlier one was cut."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from proctor import Client

POLL_SECONDS = 0.5
TASKS = 400
"""Held-out tasks of the final examination, the same for every policy."""
QUICK_TASKS = 60
"""As many where the `quick` preset shows all stages and no policy learns much."""
_GOES_ON = {"queued", "running"}


class ShowcaseFailed(RuntimeError):
    """A step did not end well; the message says which and why."""


class Stopped(Exception):
    """Somebody does not want it any more."""


class Report(Protocol):
    """Who shows the progress."""

    def step(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def progress(self, what: str, done: int, total: int | None, rate: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a showcase found."""

    title: str
    """Of the table."""
    figure: str
    """What each policy is measured by."""
    figures: dict[str, dict[str, Any]]
    """{mean, low, high, count} by what was examined."""
    comparisons: dict[str, dict[str, Any]]
    """Paired differences, by what is compared with what."""
    links: dict[str, str]
    """Pages to look at, by title."""


class Steps(ABC):
    """A showcase through the JSON API. Its methods raise ShowcaseFailed, Stopped, or the client's Refused."""

    usual_preset: ClassVar[str]
    """Of its training, unless another one is wanted."""
    first_task: ClassVar[int] = 0
    """Of the final examination."""

    def __init__(
        self, client: Client, report: Report, should_stop: Callable[[], bool], preset: str | None = None
    ) -> None:
        self.client, self.report, self.should_stop = client, report, should_stop
        self.preset = preset or self.usual_preset
        self.tasks = QUICK_TASKS if self.preset == "quick" else TASKS

    @abstractmethod
    def run(self) -> Outcome:
        """All of it, from where an earlier one ended."""

    def policy_id(self, name: str) -> str:
        """Raises ShowcaseFailed."""
        for known in self.client.pages("/policies"):
            if known["name"] == name:
                return str(known["id"])
        raise ShowcaseFailed(f"there is no policy {name}")

    def certificate(self, environment: str, number: int) -> dict[str, Any]:
        """Of a version, which is checked first where it never was."""
        address = f"/environments/{environment}/versions/{number}"
        if self.client.find(f"{address}/certificate") is None:
            self.follow(self.client.post(f"{address}/checks")["run_id"])
        found: dict[str, Any] = self.client.get(f"{address}/certificate")
        return found

    def start_training(self, version: dict[str, Any], name: str, **more: str) -> str:
        """The id of the run, which an earlier showcase may have started."""
        if self.preset != self.usual_preset:
            name = f"{name} ({self.preset})"
        body = {"version_id": version["id"], "preset": self.preset, "name": name, **more}
        return str(self.client.post("/training", {**body, "key": f"showcase {version['id']} {name}"})["id"])

    def examine(
        self, version: dict[str, Any], policy: str, title: str, checkpoint: str | None = None
    ) -> dict[str, Any]:
        """An evaluation on the held-out tasks, the same and with the same seeds for all."""
        self.report.step(f"evaluate {title} on {self.tasks} held-out tasks")
        few = "" if self.tasks == TASKS else f" {self.tasks} tasks"
        body = {
            "version_id": version["id"],
            "policy_id": self.policy_id(policy),
            "checkpoint_id": checkpoint,
            "split": "heldout",
            "tasks": self.tasks,
            "first_task": self.first_task,
            "name": f"showcase: {title}",
            "key": f"showcase {version['id']} {checkpoint or policy}{few}",
        }
        run = self.client.post("/evaluations", {name: value for name, value in body.items() if value is not None})
        return self.follow(run["id"])

    def compare(self, before: dict[str, Any], after: dict[str, Any], column: str) -> dict[str, Any]:
        """The paired difference in a column of two examinations, or in their `reward`."""
        found = self.client.get("/compare", a=before["id"], b=after["id"])
        difference: dict[str, Any] = next(each["difference"] for each in found["columns"] if each["name"] == column)
        return difference

    def follow(self, run_id: str, ends: frozenset[str] = frozenset({"completed"})) -> dict[str, Any]:
        """Until the run is completed, or ends otherwise as wanted. One that stopped or failed before is taken up
        again, once."""
        run: dict[str, Any] = self.client.get(f"/runs/{run_id}")
        if run["status"] in {"stopped", "paused", "failed"} - ends:
            self.client.post(f"/runs/{run_id}/resume")
            run = self.client.get(f"/runs/{run_id}")
        while run["status"] in _GOES_ON:
            self.wait(run)
            run = self.client.get(f"/runs/{run_id}")
        if run["status"] not in ends:
            raise ShowcaseFailed(f"{run['name']} ended {run['status']}: {run['reason']}")
        return run

    def finish(self, address: str) -> dict[str, Any]:
        """The same of other work than a run."""
        work: dict[str, Any] = self.client.get(address)
        while work["status"] in _GOES_ON:
            self.wait(work)
            work = self.client.get(address)
        return work

    def wait(self, work: dict[str, Any]) -> None:
        """A moment, with how far it is."""
        state = work["progress"]
        what = state.get("phase") or work["status"]
        self.report.progress(what, state.get("done") or 0, state.get("total") or None, state.get("rate"))
        self.pause()

    def pause(self) -> None:
        if self.should_stop():
            raise Stopped
        time.sleep(POLL_SECONDS)
