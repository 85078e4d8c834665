"""What showcases share: train, evaluate, follow a run with its progress, and resume an interrupted showcase."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.progress import Progress, TaskID

from proctor import Client, Json

POLL_SECONDS = 0.5
TASKS = 400
"""Held-out tasks of the final evaluation, the same for every policy."""
QUICK_TASKS = 60
"""Held-out tasks with the presets `quick` and `…-quick`, which show all stages without learning much."""
_UNDER_WAY = {"queued", "running"}


class ShowcaseFailed(RuntimeError):
    """A step failed. The message names the step and the reason."""


class ShowcaseStopped(Exception):
    """The showcase was canceled."""


class ProgressDisplay:
    """Shows a showcase: a bar for the current step; each finished step leaves a line."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self._bar: TaskID | None = None
        self._activity = ""

    def step(self, title: str) -> None:
        self._end_bar()
        self.bars.console.print(f"[green]▸[/] {title}")

    def say(self, text: str) -> None:
        self._end_bar()
        self.bars.console.print(f"  {text}", style="dim", markup=False)

    def progress(self, activity: str, done: int, total: int | None, rate: float | None) -> None:
        if activity != self._activity:
            self._end_bar()
            self._activity, self._bar = activity, self.bars.add_task(activity, total=total, rate="")
        if self._bar is not None:
            self.bars.update(self._bar, completed=done, total=total, rate=f"{rate:.3g}/s" if rate else "")

    def _end_bar(self) -> None:
        if self._bar is not None:
            self.bars.remove_task(self._bar)
        self._bar, self._activity = None, ""


@dataclass(frozen=True, slots=True)
class ShowcaseResult:
    title: str
    """Title of the table."""
    figure: str
    """Name of the measured quantity."""
    figures: dict[str, Json]
    """{mean, low, high, count} by policy."""
    comparisons: dict[str, Json]
    """Paired differences by title."""
    links: dict[str, str]
    """Pages by title."""


class Showcase:
    """The steps of a showcase through the JSON API. Its methods raise ShowcaseFailed, ShowcaseStopped or ProctorError.

    Each step finds the results of an earlier showcase, so that an interrupted one can be resumed.
    """

    default_preset: ClassVar[str]
    first_task: ClassVar[int] = 0
    """First task of the final evaluation."""

    def __init__(
        self, client: Client, report: ProgressDisplay, should_stop: Callable[[], bool], preset: str | None = None
    ) -> None:
        self.client, self.report, self.should_stop = client, report, should_stop
        self.preset = preset or self.default_preset
        self.tasks = QUICK_TASKS if self.preset.endswith("quick") else TASKS

    def certificate(self, environment: str, number: int) -> Json:
        """Return the certificate of a version. A version without one is checked first."""
        address = f"/environments/{environment}/versions/{number}"
        if self.client.find(f"{address}/certificate") is None:
            self.follow(self.client.post(f"{address}/checks")["run_id"])
        return self.client.get(f"{address}/certificate")

    def start_training(self, version: Json, name: str, **more: str) -> str:
        """Start a training run, unless an earlier showcase did, and return its id."""
        if self.preset != self.default_preset:
            name = f"{name} ({self.preset})"
        body = {"version_id": version["id"], "preset": self.preset, "name": name, **more}
        return str(self.client.post("/training", {**body, "key": f"showcase {version['id']} {name}"})["id"])

    def evaluate(
        self,
        version: Json,
        policy: str,
        title: str,
        checkpoint: str | None = None,
        places: Sequence[int] | None = None,
        max_tokens: int | None = None,
    ) -> Json:
        """Evaluate a policy on the held-out tasks, with the same seeds for all policies.

        `places`: indexes of the tasks. Default: the number of tasks of the showcase, from its first one.
        """
        count = self.tasks if places is None else len(places)
        self.report.step(f"evaluate {title} on {count} held-out tasks")
        ids = [known["id"] for known in self.client.pages("/policies") if known["name"] == policy]
        if not ids:
            raise ShowcaseFailed(f"there is no policy {policy}")
        few = "" if count == TASKS else f" {count} tasks"
        body = {
            "version_id": version["id"],
            "policy_id": ids[0],
            "checkpoint_id": checkpoint,
            "split": "heldout",
            "tasks": count,
            "first_task": self.first_task,
            "task_indexes": places,
            "max_tokens_per_turn": max_tokens,
            "name": f"showcase: {title}",
            "key": f"showcase {version['id']} {checkpoint or (policy if places is None else title)}{few}"[:100],
        }
        run = self.client.post("/evaluations", {name: value for name, value in body.items() if value is not None})
        return self.follow(run["id"])

    def export(self, checkpoint: str, form: str | None = None, **more: str) -> Json:
        """Export a checkpoint, unless an earlier showcase did, and return the verified export. Default: its usual
        form."""
        self.report.step(f"export the {f'trained policy as {form}' if form else 'best checkpoint'} and verify it")
        earlier = (each for each in self.client.pages("/exports") if each["checkpoint_id"] == checkpoint)
        usable = [
            each
            for each in earlier
            if each["status"] in {*_UNDER_WAY, "completed"} and (form is None or each["form"] == form)
        ]
        body = {"checkpoint_id": checkpoint, **({"form": form} if form else {}), **more}
        export = usable[0] if usable else self.client.post("/exports", body)
        export = self.wait_while_under_way(f"/exports/{export['id']}")
        if export["status"] != "completed":
            raise ShowcaseFailed(f"the export ended {export['status']}: {export['reason']}")
        return export

    def compare(self, before: Json, after: Json, column: str) -> Json:
        """Return the paired difference of two evaluations in a column, or in their `reward`."""
        compared = self.client.get("/compare", a=before["id"], b=after["id"])
        return next(each["difference"] for each in compared["columns"] if each["name"] == column)

    def follow(self, run_id: str, ends: frozenset[str] = frozenset({"completed"})) -> Json:
        """Return a run once its status is one of `ends`. A run that stopped or failed earlier is resumed once."""
        run = self.client.get(f"/runs/{run_id}")
        if run["status"] in {"stopped", "paused", "failed"} - ends:
            self.client.post(f"/runs/{run_id}/resume")
        run = self.wait_while_under_way(f"/runs/{run_id}")
        if run["status"] not in ends:
            raise ShowcaseFailed(f"{run['name']} ended {run['status']}: {run['reason']}")
        return run

    def wait_while_under_way(self, address: str) -> Json:
        """Poll a run, or other work with a status and progress, until it ends."""
        while (work := self.client.get(address))["status"] in _UNDER_WAY:
            state = work["progress"]
            activity = state.get("phase") or work["status"]
            self.report.progress(activity, state.get("done") or 0, state.get("total") or None, state.get("rate"))
            self.pause()
        return work

    def pause(self) -> None:
        if self.should_stop():
            raise ShowcaseStopped
        time.sleep(POLL_SECONDS)
