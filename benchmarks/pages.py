"""Measure how long pages take: with 100,000 rollouts the list and the review, with a team's million every page.

Peer: none.
Unit: ms per request through the whole application, or per query, wall-clock and CPU time; in Chromium, from a
    key to the painted page.
Repeats: 1. Each value is a percentile over many requests: p50 and p95.

Rows are written by COPY. The rollout list is requested with every filter, order and page, first with one run in the
database and then with ten. Review covers verdicts and the pages they lead to; 5% of the rollouts are flagged, a third
of the flags is in one of 40 clusters, and 2% of the other rollouts are in the random audit sample.

Then every page is requested with the data of a demo and of a large team: 500 environments, 5,000 runs of which two have
100,000 rollouts each, 1,000,000 rollouts and 100,000 open flags. The second column of these rows is the demo's. The
load needs 8 GB of disk and is skipped with less than 20 GB free. `PAGES=walk` measures only these pages. With
`PAGES_DATA=FOLDER`, both data sets stay in that folder and the next run uses them, after an upgrade of their schema.
"""

import functools
import itertools
import json
import operator
import os
import random
import shutil
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.app import create_app
from backend.core.session import get_engine, transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import content_hash
from backend.domain.ids import new_id, stable_id
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import estimate_mean
from backend.domain.text import json_text
from backend.domain.vocabulary import PolicyKind, Role, RunKind, RunStatus, Split
from backend.environments.tables import Environment, EnvironmentDraft, EnvironmentVersion
from backend.graders.tables import Grader
from backend.policies.tables import Policy
from backend.results.rewards import keep_next_rewards
from backend.review import audit_sample, queue
from backend.rollouts.filters import select_rollouts
from backend.rollouts.queries import count_rollouts, list_rollouts
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Task
from backend.runs import queries
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from backend.web.paging import make_cursor
from benchmarks.harness import Measure, Options, create_run, installation, percentile, sign_in, tree_cpu_seconds, web
from workers.storage.runs import summarize
from workers.tasks.housekeeping import index_texts

REPEATS = 1
LIMIT_SECONDS = 7200
"""The load of the large data set takes a quarter of an hour on a busy machine."""
RARE, COMMON = "zebrafish", "your move"
"""Texts in few rollouts and in all rollouts."""
SORTS = "-seq reward -win format -tokens seconds task status -flag -judge.strict metric.guesses".split()  # noqa: SIM905
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
QUEUE_FILTERS = ("", "?environment=table", "?detector=early_exit", "?order=newest")
GROUP_SIZE = 4
WEIGHTS = {"win": 1.0, "format": 0.2, "invalid_move": -0.1}
NOTE_KEYS = """(() => {
    const now = () => performance.timeOrigin + performance.now();
    const painted = () => sessionStorage.setItem('painted', now());
    addEventListener('keydown', () => {
        sessionStorage.setItem('key', now());
        sessionStorage.removeItem('painted');
    }, true);
    new PerformanceObserver(() => painted()).observe({ type: 'paint', buffered: true });
    addEventListener('DOMContentLoaded', () => new MutationObserver((changes) => {
        const isNext = changes.some((change) => [...change.addedNodes].some((node) => node.id === 'case'));
        if (isNext) requestAnimationFrame(() => setTimeout(painted));
    }).observe(document.body, { childList: true, subtree: true }));
})()"""
"""The next item is a separate page, or replaces the element of this one: then it is painted after the next frame."""
IS_PAINTED = "sessionStorage.getItem('painted') !== null"
MS_SINCE_KEY = "Number(sessionStorage.getItem('painted')) - Number(sessionStorage.getItem('key'))"
READING_MS = 1000
"""Time before each verdict. The fastest reviewer needs longer."""


@dataclass
class Times:
    """Milliseconds by case."""

    by_case: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU milliseconds per request, of the application and Postgres."""

    @contextmanager
    def of(self, *cases: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        for case in cases:
            self.by_case[case].append(1000 * (time.perf_counter() - began))

    def measures(self, suffix: str = "", targets: dict[str, float] | None = None) -> Iterator[Measure]:
        """Give p50 and p95 of every case. Targets are for p95."""
        for case, values in self.by_case.items():
            yield Measure(f"{case}{suffix}, p50", "ms", [statistics.median(values)])
            yield Measure(f"{case}{suffix}, p95", "ms", [percentile(values, 0.95)], target=(targets or {}).get(case))
        for case, value in self.cpu.items():
            yield Measure(f"CPU, {case}{suffix}", "ms/request", [value])


def measure(options: Options) -> Iterator[Measure]:
    rollouts, runs = options.size(100_000, 2000), options.size(10, 2)
    filters = dict(itertools.islice(FILTERS.items(), options.size(len(FILTERS), 3)))
    if os.environ.get("PAGES") == "walk":  # noqa: TID251 - no setting of the product
        yield from _walk_both(options)
        return
    with installation():
        stored = StoredRuns(rollouts)
        first = stored.add("run 0")
        alone = {"list page": 150.0, "list API": 150.0}
        yield from _list(first, filters).measures(targets=alone)
        with transaction() as session:
            session.execute(text("UPDATE flags SET cluster = 'pattern ' || abs(hashtext(key)) % 40 WHERE score < 0.33"))
            while audit_sample.draw_from(session, first):
                pass
        yield from _review(options.size(200, 10)).measures(targets={"review: next item": 150.0})
        for number in range(1, runs):
            last = stored.add(f"run {number}")
        among = {"list page": 300.0, "list API": 300.0}
        overall = _list(last, filters, has_details=False)
        yield from overall.measures(f" among {runs * rollouts:,}", targets=among)
    yield from _walk_both(options)


# The rollout list


def _list(run_id: uuid.UUID, filters: dict[str, str], *, has_details: bool = True) -> Times:
    """Request every filter in every order: page, query and API."""
    times = Times()
    client, spent = _client(Role.VIEWER), tree_cpu_seconds()
    for (name, where), sort in itertools.product(filters.items(), SORTS):
        query = {"where": where, "sort": sort}
        with transaction() as session:
            run = queries.get_run(session, run_id)
            selection = select_rollouts(scope_of(session, run), where, sort)
            middle = count_rollouts(session, selection) // 2
            rows = selection.rows.where(*selection.conditions).order_by(*selection.by()).offset(middle).limit(1)
            row = session.execute(rows).one_or_none()
            cursor = make_cursor(row.key, row.seq) if row else None
        places = {"first": {}, "middle": {"after": cursor} if cursor else {}, "last": {"before": "end"}}
        for place, position in places.items():
            cases = ["list page", *([f"list page, filter: {name}"] if has_details else [])]
            if place == "first":
                cases.append("list page, first request of a filter and order")
            parameters = {**query, **position}
            with times.of(*cases):
                assert client.get(f"/runs/{run_id}/rollouts", params=parameters).status_code == 200
            with times.of("list query"), transaction() as session:
                list_rollouts(session, session.get_one(Run, run_id), RolloutFilter(**parameters))
            with times.of("list API"):
                response = client.get("/api/v1/rollouts", params={"run_id": str(run_id), **parameters})
                assert response.status_code == 200
    times.cpu["list page, query and API"] = 1000 * (tree_cpu_seconds() - spent) / len(times.by_case["list page"])
    return times


def _client(role: Role) -> TestClient:
    """A signed-in user's client of the whole application, in this process."""
    cookies, headers = sign_in(role)
    client = TestClient(create_app(), headers=headers, cookies=cookies)
    import_module("scipy.stats")  # as the web does after its start
    client.get("/runs")  # warm up
    return client


# The review queue


def _review(count: int) -> Times:
    times = Times()
    with times.of("review: rebuild the queue"), transaction() as session:
        queue.refresh(session)
    _vacuum()
    client, spent = _client(Role.REVIEWER), tree_cpu_seconds()
    item = client.get("/api/v1/review/next").json()["id"]
    for number in range(count):
        verdict = ("hack", "honest", "broken_reward", "unsure")[number % 4]
        with times.of("review: verdict"):
            answer = client.post(f"/review/{item}", data={"verdict": verdict}, follow_redirects=False)
        with times.of("review: next item"):
            page = client.get(answer.headers["location"])
        assert page.status_code == 200
        item = page.url.path.rpartition("/")[2]
    for chosen, _ in itertools.product(QUEUE_FILTERS, range(max(count // 4, 1))):
        with times.of("review: queue"):
            assert client.get(f"/review{chosen}").status_code == 200
        with times.of("review: next item, API"):
            assert client.get(f"/api/v1/review/next{chosen}").status_code == 200
    requests = sum(
        len(times.by_case[f"review: {case}"]) for case in ("verdict", "next item", "queue", "next item, API")
    )
    times.cpu["review"] = 1000 * (tree_cpu_seconds() - spent) / requests
    if executable := shutil.which("chromium"):
        _judge_by_keys(executable, client, times, max(count // 2, 4))
    return times


def _judge_by_keys(executable: str, client: TestClient, times: Times, count: int) -> None:
    """Judge in Chromium as `client`'s user, and take the browser's own times."""
    from playwright.sync_api import sync_playwright  # installed for development only

    with web() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": name, "value": value, "url": address} for name, value in client.cookies.items()])
        context.add_init_script(NOTE_KEYS)
        page = context.new_page()
        page.goto(f"{address}/review/{client.get('/api/v1/review/next').json()['id']}")
        for number in range(count):
            page.wait_for_timeout(READING_MS)
            before = page.url
            page.keyboard.press(str(1 + number % 4))
            page.wait_for_url(functools.partial(operator.ne, before))
            while not page.evaluate(IS_PAINTED):
                page.wait_for_timeout(5)
            times.by_case["review: key to painted item, Chromium"].append(page.evaluate(MS_SINCE_KEY))
        browser.close()


# Every page


@dataclass(frozen=True, slots=True)
class TeamSize:
    """Numbers of rows of an installation."""

    environments: int
    runs: int
    rollouts: int
    flags: int
    largest: int
    """Rollouts of each of the two largest runs, which are compared."""


DEMO = TeamSize(environments=4, runs=30, rollouts=6000, flags=120, largest=1000)
LARGE = TeamSize(environments=500, runs=5000, rollouts=1_000_000, flags=100_000, largest=100_000)
QUICK = TeamSize(environments=6, runs=40, rollouts=3000, flags=200, largest=400)
NEEDED_BYTES = 20_000_000_000
REQUESTS = 9
"""Number of requests of each page. The first one counts too."""


def _walk_both(options: Options) -> Iterator[Measure]:
    large = QUICK if options.is_quick else LARGE
    if not options.is_quick and shutil.disk_usage(tempfile.gettempdir()).free < NEEDED_BYTES:
        yield Measure("pages of a large team", "ms", [], note="less than 20 GB of disk are free")
        return
    folder = os.environ.get("PAGES_DATA")  # noqa: TID251 - no setting of the product
    found = []
    for name, size in (("small", DEMO if not options.is_quick else QUICK), ("large", large)):
        kept = Path(folder).resolve() / name if folder else None
        runs = kept / "runs.json" if kept else None
        if kept and runs and not runs.exists():
            shutil.rmtree(kept, ignore_errors=True)  # a load that did not end
        with installation(kept):
            if runs and runs.exists():
                team = TeamRuns(**json.loads(runs.read_text()))
            else:
                team = store_team(size)
                if runs:
                    runs.write_text(json.dumps(asdict(team)))
            has_more = True
            while has_more:  # as housekeeping does, because these runs were not ended by a worker
                with transaction() as session:
                    has_more = keep_next_rewards(session)
            found.append(_walk(team))
    small, big = found
    for page, values in big.by_case.items():
        yield Measure(f"{page}, p50", "ms", [statistics.median(values)], peer=[statistics.median(small.by_case[page])])
        p95 = (percentile(times.by_case[page], 0.95) for times in (big, small))
        yield Measure(f"{page}, p95", "ms", [next(p95)], peer=[next(p95)], target=200.0)
    for page, spent in big.cpu.items():
        yield Measure(f"CPU, {page}", "ms/request", [spent], peer=[small.cpu[page]])


def _walk(team: "TeamRuns") -> Times:
    times, client = Times(), _client(Role.ADMIN)
    for page, address in _addresses(team, client).items():
        spent = tree_cpu_seconds()
        for _ in range(REQUESTS):
            with times.of(page):
                response = client.get(address)
            assert response.status_code == 200, (address, response.status_code)
        times.cpu[page] = 1000 * (tree_cpu_seconds() - spent) / REQUESTS
    return times


def _addresses(team: "TeamRuns", client: TestClient) -> dict[str, str]:
    run, environment = f"/runs/{team.largest[0]}", "/environments/table"
    rollout = client.get("/api/v1/rollouts", params={"run_id": str(team.largest[0]), "limit": 1}).json()["items"][0]
    addresses = {
        "overview": "/",
        "the week, API": "/api/v1/week",
        "runs": "/runs",
        "runs by text": "/runs?text=run+12",
        "run": run,
        "figures of a run, API": f"/api/v1{run}/figures",
        "rollouts": f"{run}/rollouts",
        "rollouts by text": f"{run}/rollouts?where=text+~+%22{RARE}%22",
        "groups": f"{run}/groups",
        "configuration": f"{run}/configuration",
        "safeguards": f"{run}/safeguards",
        "rescore form": f"{run}/rescore",
        "compare the largest runs": f"/compare?run={team.largest[0]}&run={team.largest[1]}",
        "compare small runs": f"/compare?run={team.small[0]}&run={team.small[1]}",
        "rollout": f"/rollouts/{rollout['id']}",
        "environments": "/environments",
        "environment": environment,
        "version": f"{environment}/versions/1",
        "leaderboards": "/leaderboards",
        "leaderboard": "/leaderboards/table",
        "policies": "/policies",
        "new evaluation": "/evaluations/new",
        "graders": "/graders",
        "grader": "/graders/strict",
        "review": "/review",
        "review item": f"/review/{client.get('/api/v1/review/next').json()['id']}",
        "team's review": "/team/review",
        "detectors": "/detectors",
        "detector": "/detectors/early_exit",
        "find": "/find?text=run+12",
    }
    other = ("training", "checkpoints", "exports", "data/sft", "imports", "notices", "team", "audit", "projects")
    return addresses | {name: f"/{name}" for name in (*other, "settings", "settings/workers")}


# Stored rows


class StoredRuns:
    """Finished evaluations with generated rollouts, flags, verdicts and grader scores, written by COPY."""

    def __init__(self, rollouts: int) -> None:
        """Create the environment version, policy, grader and tasks that all runs share."""
        self._rollouts = rollouts
        block = {
            "agent": {"action": {"format": "tag", "tag": "move", "field": "cell", "type": "integer"}},
            "rewards": dict(WEIGHTS),
            "checks": {"floor_maximum": 0.2},
        }
        manifest = Manifest.model_validate({"name": "table", "proctor": block})
        files = {"openenv.yaml": "name: table\n"}
        with transaction() as session:
            environment = Environment(name="table", description="Generated rows.")
            policy = Policy(name="grid-mini", kind=PolicyKind.SCRIPTED, configuration={"script": "random"})
            session.add_all([environment, policy])
            session.flush()
            self._version = EnvironmentVersion(
                environment_id=environment.id,
                number=1,
                files=files,
                content_hash=content_hash(files),
                manifest=manifest.model_dump(mode="json"),
            )
            judge = Grader(name="strict", kind="judge", policy_id=policy.id, settings={"kind": "judge"})
            session.add_all([self._version, judge, EnvironmentDraft(environment_id=environment.id, files=files)])
            session.flush()
            self._policy, self._judge = policy.id, judge.id
            shared = {"version_id": self._version.id, "split": Split.HELDOUT}
            for index in range(rollouts // GROUP_SIZE):
                session.add(Task(id=self._task(index), index=index, level=index % 6, seed=index, **shared))

    def add(self, name: str) -> uuid.UUID:
        """Store a run, index its texts and analyze the tables."""
        started = datetime(2026, 11, 1, tzinfo=UTC)
        run = create_run(
            self._version,
            RunKind.EVALUATION,
            RunStatus.COMPLETED,
            policy_id=self._policy,
            columns=list(WEIGHTS),
            weights=list(WEIGHTS.values()),
            next_seq=self._rollouts + 1,
            started_at=started,
            ended_at=started + timedelta(hours=1),
        )
        groups = [
            stable_id("group", run.id, "evaluation", None, ordinal) for ordinal in range(self._rollouts // GROUP_SIZE)
        ]
        with transaction() as session:
            rows = ((id, run.id, self._task(n), "evaluation", None, n) for n, id in enumerate(groups))
            _copy(session, "groups (id, run_id, task_id, phase, training_step, ordinal)", rows)
        chance = random.Random(name)
        conversations = [_conversation(chance) for _ in range(4000)]  # each is used by many rollouts
        for first in range(0, self._rollouts, 5000):
            numbers = range(first, min(first + 5000, self._rollouts))
            with transaction() as session:
                made = [
                    _rollout(chance, run.id, groups[n // GROUP_SIZE], n, started, chance.choice(conversations))
                    for n in numbers
                ]
                _copy(session, f"rollouts ({ROLLOUT_COLUMNS})", made)
                self._add_grades(session, chance, run.id, [row[0] for row in made])
        index_texts(float("inf"))
        _vacuum()
        return run.id

    @property
    def policy(self) -> uuid.UUID:
        return self._policy

    def _task(self, index: int) -> uuid.UUID:
        return stable_id("task", self._version.id, Split.HELDOUT, index, index)

    def _add_grades(
        self, session: Session, chance: random.Random, run_id: uuid.UUID, rollouts: list[uuid.UUID]
    ) -> None:
        """Flag 5% of the rollouts, judge a tenth of these, and score all of them."""
        detectors = ("repeated_text", "early_exit", "length_collapse")
        flagged = [(id, chance.choice(detectors)) for id in rollouts if chance.random() < 0.05]
        evidence = json.dumps({"spans": [{"turn": 0, "start": 2, "end": 40}], "title": "Repeated text", "share": 0.31})
        sentence = "The same words occur 12 times."
        flags = (
            (new_id(), run_id, id, detector, str(id), "warning", chance.random(), sentence, evidence)
            for id, detector in flagged
        )
        _copy(session, "flags (id, run_id, rollout_id, detector, key, severity, score, sentence, evidence)", flags)
        verdicts = (
            (new_id(), run_id, id, chance.choice(["hack", "honest"]), "") for id, _ in flagged if chance.random() < 0.1
        )
        _copy(session, "verdicts (id, run_id, rollout_id, verdict, comment)", verdicts)
        reasons = json.dumps([{"score": 0.5, "reason": "The answer follows the rules of the game and says why."}] * 2)
        scores = (
            (new_id(), self._judge, run_id, id, "completed", round(chance.random(), 2), reasons, "", "[]", 0, 300, 40)
            for id in rollouts
        )
        columns = "id, grader_id, run_id, rollout_id, status, score, verdicts, reason, citations, dropped"
        _copy(session, f"grades ({columns}, tokens_in, tokens_out)", scores)


@dataclass(frozen=True, slots=True)
class TeamRuns:
    """Ids of the stored runs whose pages are walked."""

    largest: list[str]
    small: list[str]


def store_team(size: TeamSize) -> TeamRuns:
    team = StoredTeam(size)
    return TeamRuns([str(run) for run in team.largest], [str(run) for run in team.small[:2]])


class StoredTeam:
    """Two large evaluations of `table`, and many small ones of other environments by several policies."""

    def __init__(self, size: TeamSize) -> None:
        stored = StoredRuns(size.largest)
        self.largest = [stored.add(f"largest {number}") for number in range(2)]
        with transaction() as session:
            for run_id in self.largest:
                run = session.get_one(Run, run_id)
                run.summary = summarize(session, run, seconds=3600, played=size.largest)
                run.configuration = _plan(size.largest // GROUP_SIZE)
        self.small: list[uuid.UUID] = []
        count = size.runs - 2
        self._rollouts = (size.rollouts - 2 * size.largest) // count // GROUP_SIZE * GROUP_SIZE
        self._flagged = max(0.0, (size.flags - 0.1 * size.largest) / (count * self._rollouts))
        self._tasks = self._rollouts // GROUP_SIZE
        self._chance, self._conversations = random.Random(size.runs), [_conversation(random.Random(1))] * 50
        with transaction() as session:
            policies = [Policy(name=f"model {n}", kind=PolicyKind.OPENAI_API, configuration={}) for n in range(9)]
            session.add_all(policies)
            session.flush()
            players = [stored.policy, *(policy.id for policy in policies)]
        per_environment = max(1, count // (size.environments - 1))
        for first in range(0, count, 20 * per_environment):
            with transaction() as session:
                for number in range(first, min(first + 20 * per_environment, count), per_environment):
                    version = self._add_environment(session, number // per_environment)
                    for place in range(min(per_environment, count - number)):
                        self._add_run(session, version, players[place % 10], number + place, count)
        with transaction() as session:
            queue.refresh(session)
        _vacuum()

    def _add_environment(self, session: Session, number: int) -> uuid.UUID:
        name = f"environment_{number}"
        block = {
            "agent": {"action": {"format": "tag", "tag": "move", "field": "cell", "type": "integer"}},
            "rewards": dict(WEIGHTS),
        }
        manifest = Manifest.model_validate({"name": name, "proctor": block}).model_dump(mode="json")
        files = {"openenv.yaml": f"name: {name}\n"}
        environment = Environment(name=name, description="Generated rows.")
        session.add(environment)
        session.flush()
        version = EnvironmentVersion(
            environment_id=environment.id, number=1, files=files, content_hash=content_hash(files), manifest=manifest
        )
        session.add_all([version, EnvironmentDraft(environment_id=environment.id, files=files)])
        session.flush()
        rows = ((_task_id(version.id, n), version.id, "heldout", n, n % 6, n, "{}") for n in range(self._tasks))
        _copy(session, "tasks (id, version_id, split, index, level, seed, arguments)", rows)
        return version.id

    def _add_run(self, session: Session, version: uuid.UUID, policy: uuid.UUID, number: int, count: int) -> None:
        chance, run_id = self._chance, new_id()
        self.small.append(run_id)
        started = datetime.now(UTC) - timedelta(days=60 * (1 - number / count), hours=1)
        groups = [stable_id("group", run_id, "evaluation", None, n) for n in range(self._tasks)]
        rollouts = [
            _rollout(chance, run_id, groups[n // GROUP_SIZE], n, started, chance.choice(self._conversations))
            for n in range(self._rollouts)
        ]
        place = ROLLOUT_COLUMNS.replace("\n", " ").replace(" ", "").split(",").index("reward")
        reward = estimate_mean([row[place] for row in rollouts if row[place] is not None])
        summary: dict[str, object] = {
            "reward": reward and asdict(reward),
            "rollouts": self._rollouts,
            "completed": self._rollouts,
        }
        summary |= {"tokens_in": 500 * self._rollouts, "tokens_out": 55 * self._rollouts, "cost": 0.01, "priced": 1}
        columns = (
            "id, kind, name, status, version_id, policy_id, configuration, columns, weights, seed, progress, summary"
        )
        run = (
            *(run_id, "evaluation", f"run {number}", "completed", version, policy, json.dumps(_plan(self._tasks))),
            *(list(WEIGHTS), list(WEIGHTS.values()), 0, "{}", json.dumps(summary)),
            *(self._rollouts + 1, 1, started, started + timedelta(minutes=20), started),
        )
        _copy(session, f"runs ({columns}, next_seq, attempt, started_at, ended_at, created_at)", [run])
        rows = ((id, run_id, _task_id(version, n), "evaluation", None, n) for n, id in enumerate(groups))
        _copy(session, "groups (id, run_id, task_id, phase, training_step, ordinal)", rows)
        _copy(session, f"rollouts ({ROLLOUT_COLUMNS})", rollouts)
        evidence = json.dumps({"title": "Repeated text"})
        flags = (
            (new_id(), run_id, row[0], "early_exit", str(row[0]), "warning", chance.random(), "Short.", evidence)
            for row in rollouts
            if chance.random() < self._flagged
        )
        _copy(session, "flags (id, run_id, rollout_id, detector, key, severity, score, sentence, evidence)", flags)


def _task_id(version: uuid.UUID, index: int) -> uuid.UUID:
    return stable_id("task", version, Split.HELDOUT, index, index)


def _plan(tasks: int) -> dict[str, Any]:
    return EvaluationPlan(tasks=tasks, group_size=GROUP_SIZE).model_dump(mode="json")


def _conversation(chance: random.Random) -> tuple[str, str, str]:
    """Return messages, steps and the last reply's end: about 2 KB of words with a natural distribution."""

    def words(count: int) -> str:
        return " ".join(f"w{int(chance.paretovariate(0.7)) % 20000}" for _ in range(count))

    replies = [f"{words(25)} <move>{chance.randrange(9)}</move>" for _ in range(3)]
    boards = [f"{words(15)} {COMMON}?" for _ in range(3)]
    messages = [{"role": "system", "content": f"You play tic-tac-toe as X. {words(20)}"}]
    for board, reply in zip(boards, replies, strict=True):
        messages += [{"role": "user", "content": board}, {"role": "assistant", "content": reply}]
    if chance.random() < 0.001:
        messages[-1]["content"] += f" {RARE}"
    shared = {"action": {"cell": 4}, "rewards": {"win": 0.0}, "done": False}
    steps = [
        {"reply": reply, "observation": {"board": board[:40]}, "text": board, **shared}
        for board, reply in zip(boards, replies, strict=True)
    ]
    return json_text(messages), json_text(steps), replies[-1][-300:]


ROLLOUT_COLUMNS = """id, run_id, group_id, member, seq, phase, training_step, level, status, stop_reason, error_kind,
    error_message, attempts, reward, columns, metrics, opening, steps, messages, excerpt, turns, tokens_in, tokens_out,
    is_truncated, tokens, advantage, policy_seconds, environment_seconds, queue_seconds, cost, source_id, started_at,
    ended_at"""


def _rollout(
    chance: random.Random,
    run_id: uuid.UUID,
    group: uuid.UUID,
    number: int,
    run_started: datetime,
    conversation: tuple[str, str, str],
) -> list[Any]:
    """Return a row in the order of `ROLLOUT_COLUMNS`."""
    messages, steps, excerpt = conversation
    failed = chance.random() < 0.03
    values = [chance.choice([0.0, 0.5, 1.0]), round(chance.uniform(0.6, 1.0), 2), float(chance.choice([0, 0, 1, 2]))]
    reward = None if failed else sum(weight * value for weight, value in zip(WEIGHTS.values(), values, strict=True))
    started = run_started + timedelta(milliseconds=10 * number)
    member = number % GROUP_SIZE
    return [
        stable_id("rollout", group, member), run_id, group, member, number + 1, "evaluation", None,
        (number // GROUP_SIZE) % 6, "failed" if failed else "completed",
        None if failed else chance.choice(["done", "done", "done", "max_turns", "unparsable"]),
        "environment" if failed else None, "step: the board is on fire" if failed else None, 3 if failed else 1,
        reward, None if failed else values, json.dumps({"guesses": chance.randrange(50)}), '{"board": "........."}',
        steps, messages, excerpt, chance.randrange(1, 9), chance.randrange(100, 900),
        int(chance.lognormvariate(4, 1)), chance.random() < 0.02, None, None if failed else chance.gauss(0, 1),
        chance.random(), chance.random() / 10, chance.random() / 100, chance.random() / 1000, None, started,
        started + timedelta(seconds=1),
    ]  # fmt: skip


def _copy(session: Session, target: str, rows: Iterable[Sequence[Any]]) -> None:
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with driver.cursor() as cursor, cursor.copy(f"COPY {target} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _vacuum() -> None:
    """Do what autovacuum does within a minute or two."""
    with get_engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
