"""How long the table of rollouts takes on the server: any filter, any order, any page, in a run of 100,000 rollouts.

python -m benchmarks.rollout_table [--rollouts 100000] [--runs 10] [--repeats 3]

Rows are written by COPY into a real Postgres: first one run alone, then the others beside it. Measured are the queries
themselves, and the page and the JSON API through the whole application.
"""

import argparse
import itertools
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from fastapi.testclient import TestClient
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from backend.app import create_app
from backend.core.session import get_engine, transaction
from backend.domain.vocabulary import Role
from backend.rollouts.filters import select_rollouts
from backend.rollouts.listing import count_rollouts, list_rollouts
from backend.rollouts.scope import scope_of
from backend.runs import queries
from backend.runs.requests import RolloutFilter
from backend.runs.tables import Run
from backend.team.tables import Person, WebSession
from backend.web.cursors import make_cursor
from backend.web.identity import SESSION_COOKIE, hash_secret, new_secret
from benchmarks.installation import installation
from benchmarks.table_rows import COMMON, GROUP_SIZE, RARE, make_run, make_surroundings
from workers.storage.text_index import index_texts

FIRST_LOOK = "first look"
"""The case of a page with a filter in an order that nobody asked for together before."""
ALONE_SECONDS, AMONG_SECONDS = 0.15, 0.3
"""Asked for at p95: a run of 100,000 alone, and in a database of 1,000,000."""
SORTS = (
    "-seq",
    "reward",
    "-win",
    "format",
    "-tokens",
    "seconds",
    "task",
    "status",
    "-flag",
    "-judge.strict",
    "metric.guesses",
)
FILTERS = {
    "none": "",
    "flag, column, tokens": "has flag and win = 0 and tokens > 200",
    "columns": "win = 1 and format > 0.9",
    "failed": "status = failed",
    "not flagged, or failed": "not has flag or status = failed",
    "detector and verdict": "flag = early_exit and verdict = hack",
    "group": "group = mixed",
    "task": "task in (7, 77, 777)",
    "judge": "judge.strict > 0.8 and reward < 0",
    "metric": "metric.guesses = 3",
    "rare text": f'text ~ "{RARE}"',
    "common text": f'text ~ "{COMMON}"',
}

console = Console(soft_wrap=True)


@dataclass
class Times:
    """Seconds by case."""

    by_case: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def of(self, *cases: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        for case in cases:
            self.by_case[case].append(time.perf_counter() - began)

    def report(self, title: str, limit: float) -> float:
        table = Table(title=title, box=None, title_justify="left", padding=(0, 3, 0, 0))
        for name in ("case", "p50 ms", "p95 ms", "max ms", "times"):
            table.add_column(name, justify="left" if name == "case" else "right")
        for case, seconds in self.by_case.items():
            cells = (f"{1000 * value:.0f}" for value in (statistics.median(seconds), _p95(seconds), max(seconds)))
            table.add_row(case, *cells, str(len(seconds)))
        console.print(table)
        whole = _p95([second for case in ("page", "api") for second in self.by_case.get(case, ())])
        console.print(f"p95 of all requests {1000 * whole:.0f} ms, asked for {1000 * limit:.0f} ms\n")
        return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with installation():
        surroundings = make_surroundings(options.rollouts // GROUP_SIZE)
        runs = [_fill("run 0", surroundings, options.rollouts)]
        alone = measure(runs, options.repeats).report("one run in the database", ALONE_SECONDS)
        if options.runs == 1:
            raise SystemExit(alone > ALONE_SECONDS)
        runs += [_fill(f"run {number}", surroundings, options.rollouts) for number in range(1, options.runs)]
        among = measure(runs[:1] + runs[-1:], options.repeats).report(f"{len(runs)} runs", AMONG_SECONDS)
    if alone > ALONE_SECONDS or among > AMONG_SECONDS:
        raise SystemExit(1)


def _fill(name: str, surroundings: tuple[uuid.UUID, uuid.UUID, uuid.UUID], rollouts: int) -> uuid.UUID:
    began = time.perf_counter()
    run_id = make_run(name, *surroundings, rollouts)
    stored = time.perf_counter() - began
    index_texts(float("inf"))
    indexed = time.perf_counter() - began - stored
    with get_engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))  # what autovacuum does within a minute or two
    console.print(f"{name}: {rollouts:,} rollouts stored in {stored:.1f} s, their texts indexed in {indexed:.1f} s")
    return run_id


def measure(run_ids: list[uuid.UUID], repeats: int) -> Times:
    times = Times()
    with _browser() as client:
        for run_id, (name, where) in itertools.product(run_ids, FILTERS.items()):
            for sort in SORTS:
                looks = [f"filter {name}", f"sort {sort}"]
                _ask(times, client, run_id, {"where": where, "sort": sort}, (*looks, FIRST_LOOK))
                for place, cursor in _pages(run_id, where, sort).items():
                    query = {"where": where, "sort": sort, **cursor}
                    for _ in range(repeats):
                        _ask(times, client, run_id, query, (*looks, f"{place} page"))
    return times


def _ask(times: Times, client: TestClient, run_id: uuid.UUID, query: dict[str, str], cases: tuple[str, ...]) -> None:
    with times.of("page", *cases):
        assert client.get(f"/runs/{run_id}/rollouts", params=query).status_code == 200
    with times.of("query"), transaction() as session:
        run = session.get_one(Run, run_id)
        list_rollouts(session, run, RolloutFilter(**query))
    with times.of("api"):
        assert client.get("/api/v1/rollouts", params={"run_id": str(run_id), **query}).status_code == 200


def _pages(run_id: uuid.UUID, where: str, sort: str) -> dict[str, dict[str, str]]:
    """Cursors of the first page, one in the middle and the last."""
    with transaction() as session:
        run = queries.get_run(session, run_id)
        selection = select_rollouts(scope_of(session, run), where, sort)
        middle = count_rollouts(session, selection) // 2
        rows = selection.rows.where(*selection.conditions).order_by(*selection.by()).offset(middle).limit(1)
        row = session.execute(rows).one_or_none()
        cursor = make_cursor(row.key, row.seq) if row else None
    return {"first": {}, "middle": {"after": cursor} if cursor else {}, "last": {"before": "end"}}


@contextmanager
def _browser() -> Iterator[TestClient]:
    """Signed in as somebody who reads."""
    secret = new_secret()
    with transaction() as session:
        person = Person(email=f"{secret[:8]}@example.org", name="Reader", role=Role.VIEWER)
        session.add(person)
        session.flush()
        expires_at = datetime.now(UTC) + timedelta(days=1)
        kept = {"token_hash": hash_secret(secret), "csrf_token": new_secret(), "expires_at": expires_at}
        session.add(WebSession(person_id=person.id, **kept))
    client = TestClient(create_app())
    client.cookies.set(SESSION_COOKIE, secret)
    client.get("/runs")
    yield client


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[max(0, round(0.95 * len(seconds)) - 1)] if seconds else 0.0


if __name__ == "__main__":
    main()
