"""Measure how fast the page of a rollout with 1,000 turns and 10 MB of text opens, scrolls and finds a text.

Peer: none.
Unit: ms per request through the whole application, wall-clock and CPU time; in Chromium, from the start of a
    navigation to the first contentful paint, and the longest frame while scrolling.
Repeats: 1. Each value is a percentile over many requests: p50 and p95.

Every observation has a board as its view. Requests open the first turns, open a turn in the middle, load parts as a
reader who scrolls does, and find a text that occurs in the last turn alone.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from fastapi.testclient import TestClient

from backend.app import create_app
from backend.core.session import transaction
from backend.domain.ids import new_id
from backend.domain.vocabulary import Phase, Role, RolloutStatus, RunKind, RunStatus, Split, StopReason
from backend.rollouts.tables import Group, Rollout, Task
from benchmarks.harness import (
    Measure,
    Options,
    create_run,
    import_built_in,
    installation,
    sign_in,
    tree_cpu_seconds,
    web,
)
from benchmarks.pages import Times

REPEATS = 1
TEXT = 5_000
"""Characters of one message."""
NEEDLE = "the needle of this haystack"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
LONGEST_FRAME = """async () => {
  let longest = 0, last = performance.now();
  for (let step = 0; step < 120; step += 1) {
    scrollBy(0, 600);
    await new Promise(requestAnimationFrame);
    longest = Math.max(longest, performance.now() - last);
    last = performance.now();
  }
  return longest;
}"""


def measure(options: Options) -> Iterator[Measure]:
    turns, count = options.size(1_000, 200), options.size(40, 4)
    with installation():
        rollout = _store(turns)
        cookies, headers = sign_in(Role.VIEWER)
        client = TestClient(create_app(), headers=headers, cookies=cookies)
        client.get(f"/rollouts/{rollout}")  # warm up
        times, chance = Times(), random.Random(0)
        paths: dict[str, Callable[[], str]] = {
            "open": lambda: "",
            "open in the middle": lambda: f"?turn={chance.randrange(turns)}",
            "load a part": lambda: f"/messages?start={chance.randrange(2 * turns)}",
            "find": lambda: f"/find?find={NEEDLE}",
        }
        for case, path in paths.items():
            spent = tree_cpu_seconds()
            for _ in range(count):
                address = f"/rollouts/{rollout}{path()}"
                with times.of(case):
                    assert client.get(address).status_code == 200
            times.cpu[case] = 1000 * (tree_cpu_seconds() - spent) / count
        yield from times.measures(targets={"open": 300.0, "open in the middle": 300.0, "load a part": 200.0})
        if executable := shutil.which("chromium"):
            yield from _in_chromium(executable, client, f"/rollouts/{rollout}", count // 4)


def _in_chromium(executable: str, client: TestClient, path: str, count: int) -> Iterator[Measure]:
    from playwright.sync_api import sync_playwright  # installed for development only

    with web() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": name, "value": value, "url": address} for name, value in client.cookies.items()])
        page = context.new_page()
        painted, frames = [], []
        for _ in range(count):
            page.goto(address + path)
            while (at := page.evaluate(PAINT)) is None:
                page.wait_for_timeout(5)
            painted.append(at)
            frames.append(page.evaluate(LONGEST_FRAME))
            page.wait_for_load_state("networkidle")  # the next page would wait for the parts that scrolling asked for
        yield Measure("first contentful paint, Chromium", "ms", painted, target=300.0)
        yield Measure("longest frame of 120 while scrolling, Chromium", "ms", frames)
        browser.close()


def _store(turns: int) -> str:
    """One rollout with its texts; returns its id."""
    version = import_built_in("tictactoe")
    run = create_run(version, RunKind.EVALUATION, RunStatus.COMPLETED)
    chance = random.Random(0)
    words = [f"{chance.choice('bdfgklmnprst')}{chance.choice('aeiou')}{number}" for number in range(5000)]

    def text() -> str:
        return " ".join(chance.choices(words, k=TEXT // 6))

    messages: list[dict[str, Any]] = [{"role": "user", "content": text()}]
    steps = []
    for turn in range(turns):
        board = "\n".join(" ".join(chance.choices("XO123456789", k=3)) for _ in range(3))
        reply = f"{text()} {NEEDLE if turn == turns - 1 else ''}"
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": text()}]
        step = {"reply": reply, "action": {"cell": 1}, "observation": {"message": "O plays 1.", "board": board}}
        steps.append({**step, "text": messages[-1]["content"], "rewards": {"win": 0.0}, "done": turn == turns - 1})
    with transaction() as session:
        task = Task(id=new_id(), version_id=version.id, split=Split.HELDOUT, index=0, level=0, seed=1)
        group = Group(id=new_id(), run_id=run.id, task_id=task.id, phase=Phase.EVALUATION, ordinal=0)
        session.add_all([task, group])
        session.flush()
        now = datetime.now(UTC)
        fields = {"opening": {"board": "1 2 3"}, "steps": steps, "messages": messages[:-1], "turns": turns}
        states = {"status": RolloutStatus.COMPLETED, "stop_reason": StopReason.DONE, "phase": Phase.EVALUATION}
        rollout = Rollout(id=new_id(), run_id=run.id, group_id=group.id, member=0, seq=1, level=0, **fields, **states)
        rollout.reward, rollout.columns = 0.2, [0.0] * len(run.columns)
        rollout.started_at = rollout.ended_at = now
        session.add(rollout)
        return str(rollout.id)
