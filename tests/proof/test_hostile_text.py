"""Text of a model, a package or a member is text on every page: never markup, never an instruction to the browser."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Export
from backend.core.artifacts import put_file
from backend.core.tables import Worker
from backend.domain.environments.packages import content_hash
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.example_lines import write_line
from backend.domain.training.examples import Conversation, ExampleStatistics
from backend.domain.vocabulary import (
    CheckStatus,
    ExportStatus,
    Phase,
    PolicyKind,
    PreflightStatus,
    Role,
    RunKind,
    Verdict,
)
from backend.environments.tables import Certificate, Environment, EnvironmentDraft, EnvironmentVersion
from backend.review.tables import VerdictRecord
from backend.runs.tables import RunLogLine
from backend.team.tables import ApiToken, AuditEvent, Person
from backend.training.tables import ExampleFile, Preflight
from tests import factories
from tests.environments.packages import make_files

pytestmark = pytest.mark.slow

MARKUP = "<script>alert('pt')</script>\"'><img src=x onerror=alert(1)></td></textarea><hx-partial hx-get='/x'>"
CONTROLS = "\u202e\u2066\u200f\x1b[31m\x08\x7f\x85\u2028"
HOSTILE = f"{MARKUP}{{{{ 7*7 }}}}{{% raw %}}{CONTROLS}"
LONG = MARKUP + "x" * 1_000_000
FORBIDDEN = ("<script>alert", "<img src=x", "</td></textarea>", "<hx-partial", "onerror=alert(1)>&lt;")

PAGES = (
    "/",
    "/settings",
    "/settings/workers",
    "/team",
    "/me",
    "/audit",
    "/review?shown=all",
    "/review/{flag}",
    "/review/{run_flag}",
    "/environments",
    "/environments/new",
    "/environments/{name}",
    "/environments/{name}/edit",
    "/environments/{name}/edit?file=server/app.py",
    "/environments/{name}/versions/1",
    "/environments/{name}/versions/2",
    "/environments/{name}/diff?from=1&to=2",
    "/environments/{name}/play",
    "/policies",
    "/policies/new",
    "/policies/{policy}",
    "/policies/{local}",
    "/evaluations/new",
    "/evaluations/new?again={run}",
    "/runs",
    "/runs/{run}",
    "/runs/{run}/rollouts",
    "/runs/{run}/groups",
    "/runs/{run}/flags",
    "/runs/{run}/configuration",
    "/runs/{run}/log",
    "/runs/{training}",
    "/runs/{training}/rollouts",
    "/runs/{training}/configuration",
    "/runs/{training}/branch",
    "/runs/{check}",
    "/rollouts/{rollout}",
    "/rollouts/{failed}",
    "/rollouts/{long}",
    "/compare?a={run}&b={other}",
    "/compare?run={run}&run={other}&run={run}@1",
    "/evaluations/estimate?policy_id={policy}&version_id={version}&tasks=3&group_size=1",
    "/leaderboards",
    "/leaderboards/{name}",
    "/training/new",
    "/training/new?version_id={version}",
    "/training/new?again={training}",
    "/training/new?preflight_id={preflight}",
    "/training/preflights/{preflight}",
    "/training/preflights/{preflight}/events",
    "/training/examples",
    "/training/examples/{lessons}",
    "/training/examples/preview?version_id={version}&sft.source=file&sft.file={lessons}",
    "/checkpoints",
    "/exports/new?checkpoint_id={checkpoint}",
    "/exports/{export}",
    "/runs/{run}/events",
    "/runs/{run}/rollouts/events",
    "/runs/{run}/flags/events",
    "/runs/{run}/log/events",
    "/runs/{training}/events",
    "/exports/{export}/events",
)


@pytest.fixture
def world(session: Session) -> dict[str, Any]:
    """Rows of every kind that say something hostile wherever they may say anything."""
    ada = factories.make_person(session, Role.ADMIN, HOSTILE[:100])
    version = _versions(session, ada)
    policy = factories.make_policy(session, HOSTILE[:90], configuration={"script": HOSTILE, "constant": HOSTILE})
    policy.description = HOSTILE
    model = factories.make_policy(
        session, HOSTILE[:70] + "api", PolicyKind.OPENAI_API, {"base_url": HOSTILE, "model": HOSTILE}
    )
    local = factories.make_policy(session, HOSTILE[:80] + "local", PolicyKind.LOCAL, {"source": HOSTILE})
    said = {
        "name": HOSTILE[:190],
        "reason": HOSTILE,
        "configuration": {"split": "heldout", "tasks": 3, "note": HOSTILE, HOSTILE: HOSTILE},
        "progress": {"phase": HOSTILE, "message": HOSTILE, "done": 1, "total": 3},
        "created_by": ada.id,
    }
    run = factories.make_run(session, version, policy, **said)
    other = factories.make_run(session, version, model, **said)
    rollouts = [_rollouts(session, each) for each in (run, other)]
    done, failed, long = rollouts[0]
    training = _training(session, version, local, said)
    checkpoint = factories.make_checkpoint(session, local, training, heldout={"reward": {"note": HOSTILE}})
    export = Export(
        checkpoint_id=checkpoint.id,
        run_id=training.id,
        status=ExportStatus.COMPLETED,
        reason=HOSTILE,
        card=f"# {HOSTILE}\n\n[link](javascript:alert(1))\n\n{HOSTILE}",
        passport={"verdict": HOSTILE, HOSTILE: HOSTILE},
        progress={"phase": HOSTILE},
    )
    check = factories.make_run(session, version, kind=RunKind.CHECK, policy=None, **said)
    session.add_all([export, _certificate(version, check)])
    flag = factories.make_flag(session, run, done, sentence=HOSTILE, evidence=_evidence(), detector=HOSTILE[:60])
    run_flag = factories.make_flag(session, run, None, sentence=HOSTILE, evidence=_evidence())
    _members_words(session, ada, run, flag)
    session.flush()
    session.expunge_all()
    return {
        "name": version.environment.name,
        "version": version.id,
        "policy": policy.id,
        "local": local.id,
        "run": run.id,
        "other": other.id,
        "training": training.id,
        "check": check.id,
        "rollout": done.id,
        "failed": failed.id,
        "long": long.id,
        "flag": flag.id,
        "run_flag": run_flag.id,
        "checkpoint": checkpoint.id,
        "export": export.id,
        "lessons": _lessons(session),
        "preflight": _preflight(session, version),
    }


def _preflight(session: Session, version: EnvironmentVersion) -> Any:
    finding = {
        "name": HOSTILE,
        "status": "problem",
        "sentence": HOSTILE,
        "advice": HOSTILE,
        "evidence": {HOSTILE: HOSTILE},
    }
    row = Preflight(
        version_id=version.id,
        configuration=TrainingConfiguration.model_validate(
            {"model": {"source": "base", "base": HOSTILE[:300]}, "sft": {"where": HOSTILE[:300]}}
        ).resolved(),
        status=PreflightStatus.FAILED,
        findings=[finding],
        progress={"phase": HOSTILE, "message": HOSTILE},
        reason=HOSTILE,
    )
    session.add(row)
    session.flush()
    return row.id


def _lessons(session: Session) -> Any:
    """An uploaded conversation."""
    said = [{"role": role, "content": HOSTILE} for role in ("system", "user", "assistant")]
    statistics = ExampleStatistics()
    statistics.add(Conversation(said, (True,), reward=1.0, level=0, task=HOSTILE))
    row = ExampleFile(
        name=HOSTILE[:200], artifact="lessons/hostile.jsonl", size_bytes=1, conversations=1, statistics={}
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(write_line(statistics.examples[0]))
        file.flush()
        put_file(Path(file.name), row.artifact)
    row.statistics = statistics.as_json()
    session.add(row)
    session.flush()
    return row.id


def _versions(session: Session, ada: Person) -> EnvironmentVersion:
    """Two, of which the first is given."""
    environment = Environment(name="guess", description=HOSTILE, created_by=ada.id)
    session.add(environment)
    session.flush()
    files = make_files() | {"README.md": HOSTILE, "server/app.py": f"app = '''{HOSTILE}'''\n"}
    versions = []
    for number in (1, 2):
        files = files | {"notes.txt": HOSTILE * number}
        manifest = factories.make_manifest("guess").model_dump(mode="json")
        manifest["description"] = HOSTILE
        manifest["proctor"]["agent"] |= {"system": HOSTILE, "observation": MARKUP}
        versions.append(
            EnvironmentVersion(
                environment=environment,
                number=number,
                files=files,
                content_hash=content_hash(files),
                manifest=manifest,
                notes=HOSTILE,
                published_by=ada.id,
            )
        )
    session.add_all([*versions, EnvironmentDraft(environment_id=environment.id, files=files, updated_by=ada.id)])
    session.flush()
    return versions[0]


def _rollouts(session: Session, run: Any) -> list[Any]:
    messages = [{"role": role, "content": HOSTILE} for role in ("system", "user", "assistant")]
    step = factories.make_step(
        HOSTILE, {HOSTILE: 1.0, "win": 1.0}, note=HOSTILE, text=HOSTILE, action={HOSTILE: HOSTILE}
    )
    said = {"messages": messages, "steps": [step], "excerpt": HOSTILE[:200], "opening": {HOSTILE: HOSTILE}}
    done, failed, long = factories.make_rollouts(session, run, [[1, 1, 0], None, [0, 1, 0]], **said)
    failed.error_message = HOSTILE
    long.messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": LONG}]
    long.steps = [factories.make_step(LONG, {"win": 0.0})]
    return [done, failed, long]


def _training(session: Session, version: EnvironmentVersion, local: Any, said: dict[str, Any]) -> Any:
    training = factories.make_run(
        session, version, local, kind=RunKind.TRAINING, **said | {"configuration": {"note": HOSTILE}}
    )
    for step in (1, 2):
        factories.make_rollouts(session, training, [[1, 1, 0]], phase=Phase.TRAIN, step=step, excerpt=HOSTILE)
    factories.make_points(session, training, "reward", {1: 0.5, 2: 0.6})
    factories.make_points(session, training, HOSTILE[:110], {1: 0.5, 2: 0.6})
    session.add(RunLogLine(run_id=training.id, level="info", message=HOSTILE))
    return training


def _certificate(version: EnvironmentVersion, check: Any) -> Certificate:
    result = {
        "check": HOSTILE,
        "sentence": HOSTILE,
        "status": "failed",
        "evidence": HOSTILE,
        "details": {HOSTILE: HOSTILE},
        "seconds": 1.0,
    }
    return Certificate(version_id=version.id, run_id=check.id, status=CheckStatus.FAILED, results=[result])


def _evidence() -> dict[str, Any]:
    return {
        "excerpt": HOSTILE,
        "rollouts": [HOSTILE],
        "title": HOSTILE,
        "formula": HOSTILE,
        "source": HOSTILE,
        "spans": [{"turn": 0, "start": 3, "end": 20}],
        "series": {HOSTILE: [1.0, 2.0]},
        "thresholds": {HOSTILE: HOSTILE},
        HOSTILE: HOSTILE,
    }


def _members_words(session: Session, ada: Person, run: Any, flag: Any) -> None:
    session.add_all(
        [
            RunLogLine(run_id=run.id, level=HOSTILE[:10], message=HOSTILE),
            VerdictRecord(run_id=run.id, flag_id=flag.id, verdict=Verdict.HACK, comment=HOSTILE, person_id=ada.id),
            AuditEvent(
                person_id=ada.id,
                action=HOSTILE[:80],
                subject_kind=HOSTILE[:40],
                subject_id=HOSTILE[:80],
                detail={HOSTILE: HOSTILE},
            ),
            ApiToken(person_id=ada.id, name=HOSTILE[:100], prefix="pt_", token_hash=bytes(32), role=Role.VIEWER),
            Worker(
                name=HOSTILE[:200],
                queues=[HOSTILE],
                capabilities={
                    "flavour": HOSTILE,
                    "launcher": HOSTILE,
                    "gpus": [{"name": HOSTILE, "memory_mb": 1}],
                    "engines": {HOSTILE: HOSTILE},
                },
            ),
        ]
    )


@pytest.mark.parametrize("path", PAGES)
def test_it_is_only_text(admin: TestClient, world: dict[str, Any], path: str) -> None:
    answer = admin.get(path.format_map(world))
    assert answer.status_code == 200, answer.text[:500]
    for forbidden in FORBIDDEN:
        assert forbidden not in answer.text, answer.text[max(0, answer.text.find(forbidden) - 300) :][:400]
    assert "49{%" not in answer.text, "a template was rendered twice"
    for link in re.findall(r'(?:href|src|action|hx-get|hx-post)="([^"]*)"', answer.text):
        assert not link.lower().lstrip().startswith(("javascript:", "data:text")), link
    assert "default-src 'self'" in answer.headers.get("content-security-policy", "")


def test_pages_that_show_it_do_show_it(admin: TestClient, world: dict[str, Any]) -> None:
    """Else the test above could not fail."""
    quiet = {path for path in PAGES if "&lt;script&gt;" not in admin.get(path.format_map(world)).text}
    assert quiet == {
        "/me",
        "/policies/new",
        "/environments/{name}/play",
        "/leaderboards",  # names of environments and numbers, nothing that anybody wrote
    }


@pytest.mark.parametrize("path", ["/runs/{run}", "/runs/{run}/rollouts", "/runs/{run}/groups", "/", "/review/{flag}"])
def test_a_megabyte_of_text_does_not_make_a_list_heavy(admin: TestClient, world: dict[str, Any], path: str) -> None:
    assert len(admin.get(path.format_map(world)).content) < 300_000


def test_json_shows_what_it_is(admin: TestClient, world: dict[str, Any]) -> None:
    for path in (
        "/api/v1/rollouts/{rollout}",
        "/api/v1/runs/{run}",
        "/api/v1/flags",
        "/runs/{training}/points.json?chart=reward",
    ):
        answer = admin.get(path.format_map(world))
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
