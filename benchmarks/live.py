"""How long a stored batch takes to a page that is open: streams of many readers, and one real Chromium.

python -m benchmarks.live [--rate 100] [--seconds 20] [--readers 20]

A recorder stores batches of rollouts as an evaluation does; a batch has arrived with the first block that counts it.
"""

import argparse
import asyncio
import re
import shutil
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from rich.console import Console

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import Role, RunKind, RunStatus
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.team.tables import Person, WebSession
from backend.web.identity import SESSION_COOKIE, hash_secret, new_secret
from benchmarks.installation import installation
from benchmarks.storage import sample_rollout
from benchmarks.web import web
from workers.storage.recorder import RunRecorder
from workers.storage.rollout_writer import BATCH_SECONDS

P95_SECONDS = 1.0
"""Asked for."""
SETTLE_SECONDS = 3.0
_COUNTS = {
    "run_head": re.compile(r"<progress[^>]* value=\"(\d+)\""),
    "run_outcome": re.compile(r"<dt>completed</dt>\s*<dd>([\d,]+)"),
}
"""How many rollouts a block says there are."""
_WATCH = """() => {
  window.arrivals = [];
  const read = () => {
    const found = document.getElementById("run-outcome")?.innerHTML.match(/<dt>completed<\\/dt>\\s*<dd>([\\d,]+)/);
    if (found) window.arrivals.push([Date.now() / 1000, Number(found[1].replaceAll(",", ""))]);
  };
  new MutationObserver(read).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""

console = Console(soft_wrap=True)
Moment = tuple[float, int]
"""(time, rollouts): when so many were committed, or shown."""


@dataclass
class Reader:
    """One open page's stream: when it counted how many, by block."""

    shown: dict[str, list[Moment]] = field(default_factory=lambda: {name: [] for name in _COUNTS})
    bytes: int = 0

    async def read(self, http: aiohttp.ClientSession, url: str) -> None:
        event, lines = "", []
        async with http.get(url) as response:
            async for raw in response.content:
                line = raw.decode().rstrip("\r\n")
                self.bytes += len(raw)
                if line.startswith("event:"):
                    event = line[6:].strip()
                elif line.startswith("data:"):
                    lines.append(line[5:])
                elif not line:
                    self._note(event, "\n".join(lines))
                    event, lines = "", []

    def _note(self, event: str, html: str) -> None:
        if event in _COUNTS and (found := _COUNTS[event].search(html)):
            self.shown[event].append((time.time(), int(found[1].replace(",", ""))))


def main() -> int:
    options = _options()
    with installation(), web() as url:
        run_id, manifest = _run()
        cookie = _sign_in()
        readers = [Reader() for _ in range(options.readers)]
        with (
            _chromium(f"{url}/runs/{run_id}", cookie) as page,
            _reading(readers, f"{url}/runs/{run_id}/events", cookie),
        ):
            committed = _store(RunRecorder(run_id), manifest, options.rate, options.seconds)
            time.sleep(SETTLE_SECONDS)
            arrivals = [(at, count) for at, count in page.evaluate("window.arrivals")] if page else None
    console.print(
        f"{len(committed)} batches, {committed[-1][1]:,} rollouts in {options.seconds:g} s;"
        f" {options.readers} streams, {sum(reader.bytes for reader in readers) / 1e6:.1f} MB in all"
    )
    missed = [
        _report(f"{what} to {options.readers} streams", committed, [reader.shown[block] for reader in readers])
        for block, what in (("run_head", "progress"), ("run_outcome", "figures"))
    ]
    if arrivals is not None:
        missed.append(_report("figures on a page in Chromium", committed, [arrivals]))
    return any(missed)


def _report(what: str, committed: Sequence[Moment], shown: Sequence[Sequence[Moment]]) -> bool:
    """Print the percentiles; True when they are worse than asked for."""
    delays = sorted(delay for moments in shown for delay in _delays(committed, moments))
    if lost := len(committed) * len(shown) - len(delays):
        console.print(f"{what}: {lost} of {lost + len(delays)} batches never arrived")
        return True
    p50, p95 = statistics.median(delays), delays[int(0.95 * len(delays))]
    console.print(
        f"{what}: p50 {p50:.3f} s, p95 {p95:.3f} s, worst {delays[-1]:.3f} s (asked: p95 ≤ {P95_SECONDS:g} s)"
    )
    return p95 > P95_SECONDS


def _delays(committed: Sequence[Moment], shown: Sequence[Moment]) -> Iterator[float]:
    """From each commit to the first sight of that many rollouts."""
    place = 0
    for at, count in committed:
        while place < len(shown) and shown[place][1] < count:
            place += 1
        if place == len(shown):
            return
        yield max(shown[place][0] - at, 0.0)


def _store(recorder: RunRecorder, manifest: Manifest, rate: float, seconds: float) -> list[Moment]:
    """Batches as often as the writer of an evaluation stores them; when each was committed."""
    total, stored, committed = int(rate * seconds), 0, []
    began = time.monotonic()
    while stored < total:
        time.sleep(BATCH_SECONDS)
        due = min(int(rate * (time.monotonic() - began)), total)
        recorder.store([sample_rollout(manifest, index) for index in range(stored, due)])
        committed.append((time.time(), due))
        stored = due
        recorder.progress(phase="playing", done=stored, total=total)
    return committed


def _run() -> tuple[uuid.UUID, Manifest]:
    """A running evaluation of tic-tac-toe."""
    with transaction() as session:
        version = import_package(session, "tictactoe", load_package("tictactoe"))
        assert isinstance(version, EnvironmentVersion), "the database was empty"
        manifest = Manifest.model_validate(version.manifest)
        run = Run(
            kind=RunKind.EVALUATION,
            status=RunStatus.RUNNING,
            name="live",
            version_id=version.id,
            columns=manifest.column_names,
            weights=[column.weight for column in manifest.columns],
            started_at=datetime.now(UTC),
        )
        session.add(run)
        session.flush()
        return run.id, manifest


def _sign_in() -> str:
    """The session cookie of somebody new."""
    secret = new_secret()
    with transaction() as session:
        person = Person(email="ada@example.org", name="Ada", role=Role.ADMIN)
        session.add(person)
        session.flush()
        session.add(
            WebSession(
                person_id=person.id,
                token_hash=hash_secret(secret),
                csrf_token=new_secret(),
                expires_at=datetime.now(UTC) + timedelta(hours=1),
            )
        )
    return secret


@contextmanager
def _reading(readers: Sequence[Reader], url: str, cookie: str) -> Iterator[None]:
    """All streams are read in a thread while the body runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    reading = asyncio.run_coroutine_threadsafe(_read_all(readers, url, cookie), loop)
    time.sleep(SETTLE_SECONDS)
    try:
        yield
    finally:
        reading.cancel()
        time.sleep(0.1)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


async def _read_all(readers: Sequence[Reader], url: str, cookie: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, cookies={SESSION_COOKIE: cookie}, timeout=timeout) as http:
        await asyncio.gather(*(reader.read(http, url) for reader in readers))


@contextmanager
def _chromium(url: str, cookie: str) -> Iterator[Any]:
    """The open page, which notes what it shows and when; None where there is no Chromium."""
    executable = shutil.which("chromium")
    if executable is None:
        console.print("no Chromium here: only the streams are measured")
        yield None
        return
    from playwright.sync_api import sync_playwright  # only for development

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context()
        context.add_cookies([{"name": SESSION_COOKIE, "value": cookie, "url": url}])
        page = context.new_page()
        page.goto(url)
        page.evaluate(_WATCH)
        yield page
        browser.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100, help="rollouts a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--readers", type=int, default=20, help="streams of the run's page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
