"""Measure how long a stored batch of rollouts takes to reach an open page: event streams, and Chromium.

Peer: none.
Unit: seconds from the commit to the first update that counts the batch.
Repeats: 1 run of 20 s, 100 rollouts/s and 20 readers; the values are percentiles over all batches and readers.

Chromium is measured where it is installed.
"""

import asyncio
import re
import shutil
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp

from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import Role, RunKind, RunStatus
from benchmarks.harness import Measure, Options, create_run, import_built_in, installation, percentile, sign_in, web
from benchmarks.rollouts import sample_rollout
from workers.rollouts.limits import BATCH_SECONDS
from workers.storage.recorder import RunRecorder

REPEATS = 1
ROLLOUTS_PER_SECOND = 100
SETTLE_SECONDS = 3.0
TARGET_SECONDS = 1.0
"""At the 95th percentile."""
COUNTS = {
    "run_progress": ("progress", re.compile(r"<progress[^>]* value=\"(\d+)\"")),
    "run_outcome": ("figures", re.compile(r"<dt>completed</dt>\s*<dd>([\d,]+)")),
}
"""Blocks of the run's page: their title here, and the pattern of their number of rollouts."""
NOTE_ARRIVALS = """() => {
  window.arrivals = [];
  const read = () => {
    const match = document.getElementById("run-outcome")?.innerHTML.match(/<dt>completed<\\/dt>\\s*<dd>([\\d,]+)/);
    if (match) window.arrivals.push([Date.now() / 1000, Number(match[1].replaceAll(",", ""))]);
  };
  new MutationObserver(read).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""

Moment = tuple[float, int]
"""Time, and the number of rollouts that were committed or shown."""


def measure(options: Options) -> Iterator[Measure]:
    seconds, readers = options.size(20, 3), [Reader() for _ in range(options.size(20, 2))]
    with installation(), web() as url:
        version = import_built_in("tictactoe")
        run = create_run(version, RunKind.EVALUATION, RunStatus.RUNNING, started_at=datetime.now(UTC))
        cookies, _ = sign_in(Role.ADMIN)
        with (
            _chromium(f"{url}/runs/{run.id}", cookies) as page,
            _reading(readers, f"{url}/runs/{run.id}/events", cookies),
        ):
            committed = _store(RunRecorder(run.id), Manifest.model_validate(version.manifest), seconds)
            time.sleep(SETTLE_SECONDS)
            arrivals = [(at, count) for at, count in page.evaluate("window.arrivals")] if page else None
    for block, (title, _) in COUNTS.items():
        yield from _percentiles(f"{title}, {len(readers)} streams", committed, [each.shown[block] for each in readers])
    if arrivals is not None:
        yield from _percentiles("figures, Chromium", committed, [arrivals])
    megabytes = sum(reader.bytes for reader in readers) / len(readers) / 1e6
    yield Measure(f"sent per stream in {seconds} s", "MB", [megabytes])


@dataclass
class Reader:
    """The event stream of one open page."""

    shown: dict[str, list[Moment]] = field(default_factory=lambda: {block: [] for block in COUNTS})
    bytes: int = 0

    async def read(self, http: aiohttp.ClientSession, url: str) -> None:
        event, lines = "", []
        async with http.get(url) as response:
            async for raw in response.content:
                self.bytes += len(raw)
                line = raw.decode().rstrip("\r\n")
                if line.startswith("event:"):
                    event = line[6:].strip()
                elif line.startswith("data:"):
                    lines.append(line[5:])
                elif not line:
                    if event in COUNTS and (count := COUNTS[event][1].search("\n".join(lines))):
                        self.shown[event].append((time.time(), int(count[1].replace(",", ""))))
                    event, lines = "", []


def _percentiles(name: str, committed: Sequence[Moment], readers: Sequence[Sequence[Moment]]) -> Iterator[Measure]:
    delays = [delay for shown in readers for delay in _delays(committed, shown)]
    if lost := len(committed) * len(readers) - len(delays):
        raise RuntimeError(f"{name}: {lost} of {lost + len(delays)} batches did not arrive")
    yield Measure(f"{name}, p50", "s", [statistics.median(delays)])
    yield Measure(f"{name}, p95", "s", [percentile(delays, 0.95)], target=TARGET_SECONDS)


def _delays(committed: Sequence[Moment], shown: Sequence[Moment]) -> Iterator[float]:
    """Seconds from each commit to the first update that shows at least as many rollouts."""
    place = 0
    for at, count in committed:
        while place < len(shown) and shown[place][1] < count:
            place += 1
        if place == len(shown):
            return
        yield max(shown[place][0] - at, 0.0)


def _store(recorder: RunRecorder, manifest: Manifest, seconds: int) -> list[Moment]:
    """Store batches at the interval of an evaluation's writer, and note the commits."""
    total, stored, committed = ROLLOUTS_PER_SECOND * seconds, 0, []
    began = time.monotonic()
    while stored < total:
        time.sleep(BATCH_SECONDS)
        due = min(int(ROLLOUTS_PER_SECOND * (time.monotonic() - began)), total)
        recorder.store([sample_rollout(manifest, index) for index in range(stored, due)])
        committed.append((time.time(), due))
        stored = due
        recorder.progress(phase="playing", done=stored, total=total)
    return committed


@contextmanager
def _reading(readers: Sequence[Reader], url: str, cookies: Mapping[str, str]) -> Iterator[None]:
    """Read all streams in a thread while the body runs."""

    async def read_all() -> None:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, cookies=cookies, timeout=timeout) as http:
            await asyncio.gather(*(reader.read(http, url) for reader in readers))

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    reading = asyncio.run_coroutine_threadsafe(read_all(), loop)
    time.sleep(SETTLE_SECONDS)
    try:
        yield
    finally:
        reading.cancel()
        time.sleep(0.1)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


@contextmanager
def _chromium(url: str, cookies: Mapping[str, str]) -> Iterator[Any]:
    """Open the page in Chromium, which notes when it shows what. Yields None if Chromium is not installed."""
    executable = shutil.which("chromium")
    if executable is None:
        yield None
        return
    from playwright.sync_api import sync_playwright  # installed for development only

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context()
        context.add_cookies([{"name": name, "value": value, "url": url} for name, value in cookies.items()])
        page = context.new_page()
        page.goto(url)
        page.evaluate(NOTE_ARRIVALS)
        yield page
        browser.close()
