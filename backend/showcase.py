"""The showcase: Proctor does its main job once, on tic-tac-toe, through its own JSON API.

Each step finds what an earlier showcase left and goes on from there, so that it may be cut and run again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from backend.client import Client

ENVIRONMENT = "tictactoe"
PRESET = "tictactoe-demo"
TASKS = 400
"""Held-out tasks of the final examination, the same for every policy."""
BASELINES = ("random", "constant")
STAGES = {"untrained": "untrained", "sft": "after SFT", "grpo": "after GRPO"}
POLL_SECONDS = 0.5

_GOES_ON = {"queued", "running"}


class ShowcaseFailed(RuntimeError):
    """A step did not end well; the message says which and why."""


class Stopped(Exception):
    """Somebody does not want it any more."""


class Report(Protocol):
    """Who shows the progress."""

    def step(self, title: str) -> None: ...

    def progress(self, what: str, done: int, total: int | None, rate: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the showcase found."""

    figures: dict[str, dict[str, Any]]
    """Reward on the held-out tasks, {mean, low, high, count}, by what was examined."""
    comparisons: dict[str, dict[str, Any]]
    """Paired differences of the best checkpoint, by what it is compared with."""
    links: dict[str, str]
    """Pages to look at, by title."""


class Showcase:
    """`run` returns the outcome. Raises ShowcaseFailed, Stopped, or the client's Refused."""

    def __init__(self, client: Client, report: Report, should_stop: Callable[[], bool], preset: str = PRESET) -> None:
        self.client, self.report, self.should_stop, self.preset = client, report, should_stop, preset

    def run(self) -> Outcome:
        version = self._check()
        examined = {script: self._examine(version, script) for script in BASELINES}
        training = self._train(version)
        for stage, checkpoint in self._checkpoints(training).items():
            examined[STAGES[stage]] = self._examine(version, training["policy"], checkpoint, STAGES[stage])
        best = examined[STAGES["grpo"]]
        before = {name: examined[name] for name in (STAGES["untrained"], STAGES["sft"])}
        comparisons = {name: self._compare(run, best) for name, run in before.items()}
        export = self._export(self._checkpoints(training)["grpo"])
        compared = f"/compare?a={examined[STAGES['sft']]['id']}&b={best['id']}"
        return Outcome(
            figures={name: run["summary"]["reward"] for name, run in examined.items()},
            comparisons=comparisons,
            links={
                "training": f"{self.client.url}/runs/{training['id']}",
                "before and after": f"{self.client.url}{compared}",
                "review": f"{self.client.url}/review",
                "export": f"{self.client.url}/exports/{export['id']}",
            },
        )

    def _check(self) -> dict[str, Any]:
        """The newest version, once its certificate is there."""
        self.report.step(f"check {ENVIRONMENT}: is its reward sound?")
        version: dict[str, Any] = self.client.get(f"/environments/{ENVIRONMENT}")["latest"]
        address = f"/environments/{ENVIRONMENT}/versions/{version['number']}"
        if version["certificate"] is None:
            self._follow(self.client.post(f"{address}/checks")["run_id"])
        status = self.client.get(f"{address}/certificate")["status"]
        if status == "failed":
            raise ShowcaseFailed(f"{ENVIRONMENT} v{version['number']} failed its checks")
        return version

    def _examine(
        self, version: dict[str, Any], policy: str, checkpoint: str | None = None, title: str = ""
    ) -> dict[str, Any]:
        """400 held-out tasks, the same and with the same seeds for all."""
        self.report.step(f"evaluate {title or policy} on {TASKS} held-out tasks")
        policies = {known["name"]: known["id"] for known in self.client.all("/policies")}
        body = {
            "version_id": version["id"],
            "policy_id": policies[policy],
            "checkpoint_id": checkpoint,
            "split": "heldout",
            "tasks": TASKS,
            "name": f"showcase: {title or policy}",
            "key": f"showcase {version['id']} {checkpoint or policy}",
        }
        run = self.client.post("/evaluations", {name: value for name, value in body.items() if value is not None})
        return self._follow(run["id"])

    def _train(self, version: dict[str, Any]) -> dict[str, Any]:
        self.report.step("train a small model from scratch: SFT warm-up on scripted play, then GRPO")
        name = f"{ENVIRONMENT} showcase v{version['number']}"
        if self.preset != PRESET:
            name = f"{name} ({self.preset})"
        body = {
            "version_id": version["id"],
            "preset": self.preset,
            "name": name,
            "key": f"showcase {version['id']} {name}",
        }
        return self._follow(self.client.post("/training", body)["id"])

    def _checkpoints(self, training: dict[str, Any]) -> dict[str, str]:
        """Untrained, after the warm-up, and the best of GRPO by held-out reward, in this order."""
        found = list(self.client.all("/checkpoints", run_id=training["id"]))
        best: dict[str, dict[str, Any]] = {}
        for checkpoint in found:
            known = best.get(checkpoint["stage"])
            if known is None or (checkpoint["heldout_reward"] or 0) > (known["heldout_reward"] or 0):
                best[checkpoint["stage"]] = checkpoint
        missing = [title for stage, title in STAGES.items() if stage not in best]
        if missing:
            raise ShowcaseFailed(f"the training left no checkpoint {', '.join(missing)}")
        return {stage: best[stage]["id"] for stage in STAGES}

    def _compare(self, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/compare", a=before["id"], b=after["id"])
        return found

    def _export(self, checkpoint: str) -> dict[str, Any]:
        """An export is proven: loaded again in a fresh process and examined on the same tasks."""
        self.report.step("export the best checkpoint and prove it")
        earlier = [export for export in self.client.all("/exports") if export["checkpoint_id"] == checkpoint]
        usable = [export for export in earlier if export["status"] in {"queued", "running", "completed"}]
        export: dict[str, Any] = usable[0] if usable else self.client.post("/exports", {"checkpoint_id": checkpoint})
        while export["status"] in _GOES_ON:
            self._show(export)
            export = self.client.get(f"/exports/{export['id']}")
        if export["status"] != "completed":
            raise ShowcaseFailed(f"the export ended {export['status']}: {export['reason']}")
        return export

    def _follow(self, run_id: str) -> dict[str, Any]:
        """Until the run is completed. One that stopped or failed before is taken up again, once."""
        run: dict[str, Any] = self.client.get(f"/runs/{run_id}")
        if run["status"] in {"stopped", "paused", "failed"}:
            self.client.post(f"/runs/{run_id}/resume")
            run = self.client.get(f"/runs/{run_id}")
        while run["status"] in _GOES_ON:
            self._show(run)
            run = self.client.get(f"/runs/{run_id}")
        if run["status"] != "completed":
            raise ShowcaseFailed(f"{run['name']} ended {run['status']}: {run['reason']}")
        return run

    def _show(self, work: dict[str, Any]) -> None:
        state = work["progress"]
        what = state.get("phase") or work["status"]
        self.report.progress(what, state.get("done") or 0, state.get("total") or None, state.get("rate"))
        if self.should_stop():
            raise Stopped
        time.sleep(POLL_SECONDS)
