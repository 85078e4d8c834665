"""How long a reviewer waits for the next item: a run of 100,000 rollouts, 5 % of them flagged.

python -m benchmarks.review [--rollouts 100000] [--verdicts 200] [--processor] [--browser]

Rows are written by COPY into a real Postgres; a third of the flags is in one of 40 clusters, and 2 % of the others are
in the blind sample. Measured through the whole application: the page that a verdict leads to, the verdict itself, the
list, and the JSON. --processor counts this process's CPU seconds instead of the clock, where others use the machine:
what Postgres does is not in that. --browser also judges by keys in Chromium, from the key until the next item is
painted: verdict, next item and its painting.
"""

import argparse
import shutil
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from fastapi.testclient import TestClient
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select, text

from backend.app import create_app
from backend.core.session import get_engine, transaction
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Role
from backend.review import audit_sample, queue
from backend.review.tables import ReviewItem
from backend.team.tables import Person, WebSession
from backend.web.identity import SESSION_COOKIE, hash_secret, new_secret
from benchmarks.installation import installation
from benchmarks.table_rows import GROUP_SIZE, make_run, make_surroundings
from benchmarks.web import web

NEXT_SECONDS = 0.15
"""Asked for at p95: the page of the next item."""
NOTE_KEYS = (
    "addEventListener('keydown', () => sessionStorage.setItem('key', performance.timeOrigin + performance.now()), true)"
)
PAINTED = "performance.getEntriesByName('first-contentful-paint').length > 0"
SINCE_KEY = """performance.timeOrigin + performance.getEntriesByName('first-contentful-paint')[0].startTime
    - Number(sessionStorage.getItem('key'))"""
FILTERS = ("", "?environment=table", "?detector=early_exit", "?order=newest")
console = Console(soft_wrap=True)


class Times:
    """Seconds by what was done."""

    def __init__(self, clock: str) -> None:
        self.clock = time.process_time if clock == "processor" else time.perf_counter
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = self.clock()
        yield
        self.seconds[name].append(self.clock() - began)

    def p95(self, name: str) -> float:
        return statistics.quantiles(self.seconds[name], n=20)[-1]

    def report(self) -> None:
        table = Table("ms", "times", "p50", "p95", "most")
        for name, seconds in self.seconds.items():
            figures = (statistics.median(seconds), self.p95(name), max(seconds))
            table.add_row(name, str(len(seconds)), *(f"{1000 * each:.1f}" for each in figures))
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--verdicts", type=int, default=200)
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--browser", action="store_true", help="also by keys in Chromium")
    options = parser.parse_args()
    times = Times("processor" if options.processor else "wall")
    with installation():
        run_id = make_run("reviewed", *make_surroundings(options.rollouts // GROUP_SIZE), options.rollouts)
        _keep(run_id)
        with _reviewer() as client:
            _judge(client, times, options.verdicts)
            _read(client, times, options.verdicts // 4)
            if options.browser:
                _judge_by_keys(client, times, options.verdicts // 2)
    times.report()
    if times.p95("next item") > NEXT_SECONDS:
        raise SystemExit(1)


def _keep(run_id: uuid.UUID) -> None:
    """Clusters, the blind sample, and the list of all that."""
    with transaction() as session:
        session.execute(text("UPDATE flags SET cluster = 'pattern ' || abs(hashtext(key)) % 40 WHERE score < 0.33"))
        while audit_sample.draw_from(session, run_id):
            pass
    began = time.perf_counter()
    with transaction() as session:
        queue.refresh(session)
    seconds = time.perf_counter() - began
    with get_engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))  # what autovacuum does within a minute or two
    with transaction() as session:
        flags = session.scalar(select(func.count(Flag.id)))
        items = session.scalar(select(func.count(ReviewItem.id)))
    console.print(f"{flags:,} flags, {items:,} items with the blind sample; the list made anew in {seconds:.2f} s")


def _judge(client: TestClient, times: Times, count: int) -> None:
    """Down the queue, one verdict after the other, as a browser does it."""
    address = client.get("/api/v1/review/next").json()["id"]
    for number in range(count):
        verdict = ("hack", "honest", "broken_reward", "unsure")[number % 4]
        with times.of("verdict"):
            answer = client.post(f"/review/{address}", data={"verdict": verdict}, follow_redirects=False)
        with times.of("next item"):
            shown = client.get(answer.headers["location"])
        assert shown.status_code == 200
        address = shown.url.path.rpartition("/")[2]


def _read(client: TestClient, times: Times, count: int) -> None:
    for chosen in FILTERS:
        for _ in range(count):
            with times.of(f"list {chosen}".strip()):
                assert client.get(f"/review{chosen}").status_code == 200
            with times.of(f"next as JSON {chosen}".strip()):
                assert client.get(f"/api/v1/review/next{chosen}").status_code == 200


def _judge_by_keys(client: TestClient, times: Times, count: int) -> None:
    """As `client`'s person; the browser's own clock counts, from the key to the first paint of the next item."""
    with web() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": SESSION_COOKIE, "value": client.cookies[SESSION_COOKIE], "url": address}])
        context.add_init_script(NOTE_KEYS)
        page = context.new_page()
        page.goto(f"{address}/review/{client.get('/api/v1/review/next').json()['id']}")
        for number in range(count):
            before = page.url
            page.keyboard.press(str(1 + number % 4))
            page.wait_for_url(lambda url, before=before: url != before)
            while not page.evaluate(PAINTED):
                page.wait_for_timeout(5)
            times.seconds["key to painted item"].append(page.evaluate(SINCE_KEY) / 1000)
        browser.close()


@contextmanager
def _reviewer() -> Iterator[TestClient]:
    """Signed in as somebody who judges."""
    secret, csrf = new_secret(), new_secret()
    with transaction() as session:
        person = Person(email=f"{secret[:8]}@example.org", name="Rae", role=Role.REVIEWER)
        session.add(person)
        session.flush()
        expires_at = datetime.now(UTC) + timedelta(days=1)
        kept = {"token_hash": hash_secret(secret), "csrf_token": csrf, "expires_at": expires_at}
        session.add(WebSession(person_id=person.id, **kept))
    client = TestClient(create_app(), headers={"X-CSRF-Token": csrf})
    client.cookies.set(SESSION_COOKIE, secret)
    client.get("/review")
    yield client


if __name__ == "__main__":
    main()
