"""Look at pages: `python -m tests.browser.shots FOLDER [/path …]` draws each at two widths, in light and in dark.

Starts an embedded Postgres with made-up rows and the real application; nothing of it stays but the pictures.
"""

import argparse
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvicorn
from alembic import command
from alembic.config import Config
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.app import create_app
from backend.db.models import Environment, EnvironmentVersion, Person, SignInLink, WebSession, Worker
from backend.db.session import transaction
from backend.domain.vocabulary import Phase, Role, RunKind, RunStatus, Severity
from backend.embedded import Postgres
from backend.environments.service import import_builtins
from backend.settings import PROJECT_ROOT, get_settings
from backend.web.identity import SESSION_COOKIE, hash_secret, new_secret
from tests import factories

CHROMIUM = "/usr/bin/chromium"
WIDTHS = {"wide": (1440, 900), "phone": (390, 844)}


@contextmanager
def installation() -> Iterator[str]:
    """The application on an empty database of its own; gives its address."""
    folder = Path(tempfile.mkdtemp(prefix="ps-"))
    (folder / "run").mkdir()
    postgres = Postgres(folder / "postgres", folder / "run", folder / "postgres.log")
    postgres.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {
                "PROCTOR_STAGE": "test",
                "PROCTOR_DATA": str(folder),
                "DATABASE_URL": postgres.url(),
            }.items():
                patch.setenv(name, value)
            get_settings.cache_clear()
            config = Config(PROJECT_ROOT / "alembic.ini")
            config.set_main_option("sqlalchemy.url", postgres.url().replace("%", "%%"))
            command.upgrade(config, "head")
            with _server() as address:
                yield address
    finally:
        postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_app(), port=port, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=5)


def cookie_for(session: Session, person: Person) -> str:
    secret = new_secret()
    expires_at = datetime.now(UTC) + timedelta(days=1)
    session.add(
        WebSession(person_id=person.id, token_hash=hash_secret(secret), csrf_token=new_secret(), expires_at=expires_at)
    )
    session.flush()
    return secret


def make_rows(session: Session) -> dict[str, str]:
    """A team, runs of every kind and flags; gives names for paths, such as `{flag}`."""
    admin = factories.make_person(session, Role.ADMIN, "Ada Lovelace")
    admin.password_hash = "set"
    factories.make_person(session, Role.REVIEWER, "Rae Okafor").password_hash = "set"
    factories.make_person(session, Role.TRAINER, "Tom Baker").disabled_at = datetime.now(UTC)
    import_builtins(session)
    version = session.scalars(select(EnvironmentVersion).join(Environment).where(Environment.name == "tictactoe")).one()
    version.environment = session.get_one(Environment, version.environment_id)
    policy = factories.make_policy(session, "grid-mini")
    training = _training(session, version, policy)
    evaluation = factories.make_run(session, version, policy, name="grid-mini on 400 held-out tasks")
    evaluation.summary = {"reward": {"mean": 0.742, "low": 0.71, "high": 0.77}}
    rollouts = factories.make_rollouts(session, evaluation, factories.random_rows(48, failing=0.05), group_size=4)
    flag = _flags(session, training, evaluation, rollouts)
    for name, status, progress in (
        ("tictactoe: random-legal", RunStatus.RUNNING, {"phase": "play", "done": 130, "total": 400}),
        ("number_guess: checks", RunStatus.QUEUED, {}),
    ):
        factories.make_run(session, version, policy, name=name, status=status, progress=progress, ended_at=None)
    session.add(
        Worker(
            name="laptop-cpu",
            queues=["cpu", "gpu"],
            capabilities={
                "flavour": "transformers",
                "cpus": 2,
                "memory_mb": 24000,
                "torch": "2.13.0",
                "trl": "1.16.0",
                "launcher": "jail",
            },
        )
    )
    link = new_secret()
    session.add(
        SignInLink(person_id=admin.id, token_hash=hash_secret(link), expires_at=datetime.now(UTC) + timedelta(hours=1))
    )
    session.flush()
    return {
        "cookie": cookie_for(session, admin),
        "flag": str(flag[0].id),
        "run_flag": str(flag[1].id),
        "training": str(training.id),
        "evaluation": str(evaluation.id),
        "rollout": str(rollouts[0].id),
        "policy": str(policy.id),
        "link": link,
    }


def _training(session: Session, version: factories.EnvironmentVersion, policy: factories.Policy) -> factories.Run:
    run = factories.make_run(
        session, version, policy, kind=RunKind.TRAINING, status=RunStatus.RUNNING, name="grid-mini: GRPO", ended_at=None
    )
    run.progress = {"phase": "grpo", "done": 212, "total": 400}
    dice = random.Random(3)
    steps = range(1, 213)
    for name, slope in (("reward", 0.6), ("columns/win", 0.5), ("columns/format", 0.3), ("columns/invalid_move", -0.2)):
        values = {step: slope * (1 - 0.99**step) + dice.gauss(0.2, 0.04) for step in steps}
        factories.make_points(session, run, name, values)
    for name in ("entropy", "completions/mean_length", "groups/no_variance", "completions/truncated"):
        factories.make_points(session, run, name, {step: dice.random() / (1 + step / 50) for step in steps})
    factories.make_points(session, run, "heldout/reward", {step: 0.4 + step / 600 for step in range(0, 213, 25)})
    factories.make_rollouts(session, run, factories.random_rows(16, 5), group_size=8, phase=Phase.TRAIN, step=212)
    return run


def _flags(
    session: Session, training: factories.Run, evaluation: factories.Run, rollouts: list[factories.Rollout]
) -> list[factories.Flag]:
    told = rollouts[1]
    reply = "I will take the centre. " * 6 + "<move>4</move>"
    told.messages = [
        {"role": "system", "content": "You play tic-tac-toe as X. Answer with <move>cell</move>, cells are 0 to 8."},
        {"role": "user", "content": " X | O |  \n---+---+---\n   |   |  \n---+---+---\n   |   | O\nYour move?"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "Cell 4 is taken. <script>alert('no')</script> Try again."},
        {"role": "assistant", "content": "<move>0</move>"},
    ]
    told.steps = [
        factories.make_step(
            reply, {"win": 0.0, "format": 1.0, "invalid_move": 1.0}, done=False, note="Cell 4 is taken."
        ),
        factories.make_step("<move>0</move>", {"win": 1.0, "format": 1.0, "invalid_move": 0.0}),
    ]
    how = {
        "title": "Repeated text",
        "formula": "share of four-word sequences that occurred before > 0.3",
        "source": "starting point",
        "thresholds": {"share": 0.3},
    }
    spans = {"spans": [{"turn": 0, "start": 24, "end": 144}], "excerpt": "I will take the centre.", **how}
    first = factories.make_flag(
        session,
        evaluation,
        told,
        evidence=spans,
        sentence="Turn 1 repeats itself: 83% of its four-word sequences occurred before (zlib ratio 0.21).",
    )
    factories.make_flag(
        session,
        evaluation,
        told,
        detector="early_exit",
        severity=Severity.NOTE,
        sentence="Ended after 2 turns by a reply that cannot be read.",
    )
    series = {
        "series": {"reward": [0.2, 0.22, 0.21, 0.24, 0.3, 0.5, 0.7, 0.72]},
        "window": [180, 212],
        "rollouts": [str(row.id) for row in rollouts[:3]],
    }
    second = factories.make_flag(
        session,
        evaluation,
        None,
        detector="reward_jump",
        severity=Severity.ALERT,
        evidence=series,
        sentence="The mean reward jumped from 0.214 to 0.721 between steps 180 and 212.",
        training_step=212,
    )
    factories.make_flag(
        session,
        training,
        None,
        detector="variance_gone",
        sentence="In 64% of the groups of steps 190 to 212 all rollouts earned the same; mostly all good.",
        training_step=212,
    )
    return [first, second]


def shoot(page: Page, address: str, path: str, target: Path, width: str, scheme: str) -> None:
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda got: problems.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    answer = page.goto(address + path)
    page.wait_for_timeout(500)
    name = path.strip("/").replace("/", "_").replace("?", "_")[:40] or "overview"
    page.screenshot(path=target / f"{name}-{width}-{scheme}.png", full_page=True)
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    note = f"{answer.status if answer else '?'} {path} {width} {scheme}"
    sys.stdout.write(
        note + (f" OVERFLOW {overflow}px" if overflow > 0 else "") + "".join(f"\n  {p}" for p in problems) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="*", default=["/"])
    parser.add_argument("--fresh", action="store_true", help="without runs and flags")
    parser.add_argument("--widths", nargs="*", default=list(WIDTHS))
    parser.add_argument("--schemes", nargs="*", default=["light", "dark"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with installation() as address, sync_playwright() as playwright:
        with transaction() as session:
            if options.fresh:
                names = {"cookie": cookie_for(session, factories.make_person(session, Role.ADMIN, "Ada Lovelace"))}
            else:
                names = make_rows(session)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in options.widths:
            for scheme in options.schemes:
                size = WIDTHS[width]
                context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
                context.add_cookies([{"name": SESSION_COOKIE, "value": names["cookie"], "url": address}])
                for path in options.paths:
                    page = context.new_page()
                    shoot(page, address, path.format(**names), options.folder, width, scheme)
                    page.close()
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
