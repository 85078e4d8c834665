"""Photograph the main pages of a running Proctor on which the showcase has ended: `make demo`, then `make screenshots`.

It adds what the showcase does not do (an evaluation that a detector flags, an episode begun by hand) and takes the rest
as it is found.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

from backend.cli.connection import left_token
from backend.settings import get_settings
from backend.supervisor.data_folder import running_at
from proctor import Client

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
T = TypeVar("T")
SIZES = {"": (1440, 900), "phone": (390, 844)}
WAIT_SECONDS = 120.0
ENVIRONMENT = "tictactoe"


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: `look` is light or dark, `size` a key of SIZES, `until` a selector that has to be there."""

    name: str
    path: str
    look: str = "light"
    size: str = ""
    until: str = "main h1"


class NothingToShow(RuntimeError):
    """The showcase has not run here."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=get_settings().data, help="data folder of the running Proctor")
    parser.add_argument("--to", type=Path, default=Path("docs/screenshots"))
    options = parser.parse_args()
    url, browser = running_at(options.data), next(filter(None, map(shutil.which, BROWSERS)), None)
    if url is None or browser is None:
        sys.stderr.write("start `make demo` first\n" if browser else f"none of {', '.join(BROWSERS)} is here\n")
        return 2
    token = left_token(options.data)
    try:
        shots = list(choose_shots(Client(url, token)))
    except NothingToShow as error:
        sys.stderr.write(f"{error}: let `make demo` end first\n")
        return 1
    options.to.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for shot in shots:
            file = take(chromium, url, token, shot, options.to)
            sys.stdout.write(f"{file} {file.stat().st_size // 1000} kB\n")
        chromium.close()
    return 0


def choose_shots(client: Client) -> Iterator[Shot]:
    """What there is to see on this installation."""
    training = newest(client, "training")
    sft, grpo = (newest(client, "evaluation", f"showcase: after {stage}") for stage in ("SFT", "GRPO"))
    won = first(client, "/rollouts", run_id=grpo["id"], sort="-reward")
    export = first(client, "/exports")
    version = client.get(f"/environments/{ENVIRONMENT}")["latest"]
    address = f"/environments/{ENVIRONMENT}"
    trained = f"/runs/{training['id']}"
    yield Shot("overview", "/")
    yield Shot("environments", "/environments")
    yield Shot("editor", f"{address}/edit", until=".ace_line")
    yield Shot("certificate", f"{address}/versions/{version['number']}", until="#certificate tbody tr")
    yield Shot("play", f"{address}/play/{begin_play(client)}", until=".play-choices")
    yield from shots_of_results(grpo, sft, won)
    yield Shot("launch", f"/training/new?preset=quick&version_id={version['id']}")
    yield Shot("training", trained, until=".chart canvas")
    yield from shots_of_judging(flagged(client), trained)
    yield Shot("export", f"/exports/{export['id']}", until="[aria-label='Checkpoint and reloaded export']")


def shots_of_results(after: dict[str, Any], before: dict[str, Any], won: dict[str, Any]) -> Iterator[Shot]:
    """Screenshots of an evaluation, its rollouts and its comparison with others."""
    run = f"/runs/{after['id']}"
    yield Shot("evaluation", run, until="#run-figures tbody tr")
    yield Shot("evaluation-dark", run, look="dark", until="#run-figures tbody tr")
    yield Shot("rollouts", f"{run}/rollouts?where={quote('reward > 0 and turns > 1')}", until="#rollout-table tbody tr")
    yield Shot("rollout", f"/rollouts/{won['id']}", until=".transcript")
    yield Shot("rollout-phone", f"/rollouts/{won['id']}", size="phone", until=".transcript")
    yield Shot("compare", f"/compare?run={before['id']}&run={after['id']}", until="#side-by-side")
    yield Shot("leaderboard", f"/leaderboards/{ENVIRONMENT}", until="main table.data tbody tr")
    yield Shot("rescore", f"{run}/rescore", until=".weight-input")


def shots_of_judging(flag: str, trained: str) -> Iterator[Shot]:
    """Screenshots of the review queue, a verdict, and a run's report."""
    yield Shot("queue", "/review", until="main table.data tbody tr")
    yield Shot("review-phone", f"/review/{flag}", size="phone", until=".accusation")
    yield Shot("detectors", "/detectors", until="main table.data tbody tr")
    yield Shot("safeguards", f"{trained}/safeguards")
    yield Shot("judge", "/graders/new")


def take(chromium: Browser, url: str, token: str, shot: Shot, folder: Path) -> Path:
    width, height = SIZES[shot.size]
    context = chromium.new_context(
        base_url=url,
        viewport={"width": width, "height": height},
        color_scheme="dark" if shot.look == "dark" else "light",
        reduced_motion="reduce",
        extra_http_headers={"Authorization": f"Bearer {token}"},
    )
    page = context.new_page()
    page.goto(shot.path)
    page.locator(shot.until).first.wait_for(timeout=WAIT_SECONDS * 1000)
    settle(page)
    file = folder / f"{shot.name}.png"
    page.screenshot(path=file, animations="disabled", caret="hide")
    context.close()
    return file


def settle(page: Page) -> None:
    """Until all charts have their curves."""
    for chart in page.locator("[data-chart]:visible").all():
        chart.locator("canvas, .plot p:has-text('No points')").first.wait_for(timeout=WAIT_SECONDS * 1000)
    page.evaluate("() => document.fonts.ready")


def newest(client: Client, kind: str, name: str = "") -> dict[str, Any]:
    for run in client.pages("/runs", kind=kind, status="completed"):
        if run["name"].startswith(name):
            return run
    raise NothingToShow(f"there is no completed {kind} {name}".rstrip())


def first(client: Client, path: str, **query: object) -> dict[str, Any]:
    for item in client.pages(path, limit=1, **query):
        return item
    raise NothingToShow(f"{path} is empty")


def begin_play(client: Client) -> str:
    """An episode by hand, one move deep."""
    address = f"/environments/{ENVIRONMENT}/play"
    run = str(client.post(address, {"split": "heldout", "index": 5})["run_id"])

    def look() -> dict[str, Any]:
        return dict(client.get(f"{address}/{run}"))

    play = wait_until(look, lambda now: now["phase"] == "yours")
    middle = play["choices"][len(play["choices"]) // 2]
    client.post(f"{address}/{run}/reply", {"reply": middle, "revision": play["revision"]})
    return run


def flagged(client: Client) -> str:
    """A flag on a rollout; an evaluation of the policy `repeat` has some."""
    policies = {policy["name"]: policy["id"] for policy in client.pages("/policies")}
    version = client.get(f"/environments/{ENVIRONMENT}")["latest"]["id"]
    body = {"version_id": version, "policy_id": policies["repeat"], "split": "heldout", "tasks": 40}
    run = client.post("/evaluations", body | {"key": "repeated text"})

    def look() -> list[dict[str, Any]]:
        return list(client.pages("/flags", run=run["id"], limit=5))

    found = wait_until(look, bool)
    return str(found[0]["id"])


def wait_until(look: Callable[[], T], is_there: Callable[[T], object]) -> T:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_there(seen := look()):
        if time.monotonic() > deadline:
            raise NothingToShow(f"waited too long for {seen}")
        time.sleep(0.3)
    return seen


if __name__ == "__main__":
    sys.exit(main())
