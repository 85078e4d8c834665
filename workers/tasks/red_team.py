"""The jobs of the red team on a draft as it is saved: `environments.attack`, and `environments.verify_repair`.

Neither stores rollouts. An attack proposes fixtures; a verified repair may be published.
"""

import time
import uuid
from dataclasses import asdict

from sqlalchemy.orm import Session

from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.domain.environments.fixtures import exploit_fixture
from backend.domain.environments.manifest import Manifest, ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.text import plain_text
from backend.domain.vocabulary import CheckStatus
from backend.environments.scaffold import with_generated
from backend.environments.tables import EnvironmentDraft
from backend.review.fixtures import judged_fixtures
from workers.environments.checks.registry import CHECKS, run_checks
from workers.environments.checks.subject import CheckSubject
from workers.environments.client import HostRefused
from workers.environments.red_team import Exploit, NoFloor, attack
from workers.storage.env_host import serve
from workers.storage.policies import load_policy
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

PROGRESS_SECONDS = 1.0
REPAIR_CHECKS = (
    *("starts_and_resets", "agent_fits", "rewards_finite", "steps_and_ends"),
    *("gold_reaches_bound", "degenerate_policies", "fixtures_hold", "judged_fixtures_hold"),
)
"""Checks that a repair must pass. `gold_reaches_bound` must apply, too."""


def run(context: JobContext) -> None:
    """Attack the draft within the budget and keep the exploits, each with its proposed fixture."""
    option = context.arguments.get("policy") or {}
    with transaction() as session:
        files, manifest, revision = _draft(session, context)
        attacker = load_policy(session, option) if option else None
    if manifest is None:
        return
    last = 0.0

    def report(phase: str, share: float, found: list[Exploit]) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            progress = {"phase": phase, "share": share, "exploits": len(found)}
            with transaction() as session:
                keep_answer(session, context.job_id, progress, name="progress")

    async def search() -> list[Exploit]:
        async with serve(content_hash(files), files, manifest) as server:
            subject = CheckSubject(manifest, server, files=files)
            return await attack(
                subject, seconds=float(context.arguments["seconds"]), attacker=attacker, on_progress=report
            )

    try:
        exploits = run_async(search(), closing=attacker)
        answer: dict[str, object] = {
            "draft_revision": revision,
            "exploits": [
                {**asdict(each), "replies": list(each.replies), "fixture": exploit_fixture(each.attack, each.replies)}
                for each in exploits
            ],
            "error": "",
        }
    except (NoFloor, HostRefused) as error:
        answer = {"error": plain_text(str(error))[:2000]}
    with transaction() as session:
        keep_answer(session, context.job_id, answer)


def verify(context: JobContext) -> None:
    """Run the checks that a repair must pass on the draft."""
    with transaction() as session:
        files, manifest, revision = _draft(session, context)
        judged = judged_fixtures(session, uuid.UUID(context.arguments["environment_id"]))
    if manifest is None:
        return
    checks = [check for check in CHECKS if check.id in REPAIR_CHECKS]

    async def examine() -> list[dict[str, object]]:
        async with serve(content_hash(files), files, manifest) as server:
            subject = CheckSubject(manifest, server, files=files, judged=judged)
            results = await run_checks(subject, checks=checks)
        return [
            {"check": each.check, "label": each.label, "status": str(each.status), "applies": each.applies}
            | {"evidence": plain_text(each.evidence)[:600]}
            for each in results
        ]

    try:
        results = run_async(examine())
        needed = {each["check"]: each["status"] for each in results if each["applies"]}
        holds = needed.get("gold_reaches_bound") == CheckStatus.PASSED and CheckStatus.FAILED not in needed.values()
        answer: dict[str, object] = {"draft_revision": revision, "results": results, "holds": holds, "error": ""}
    except HostRefused as error:
        answer = {"error": plain_text(str(error))[:2000]}
    with transaction() as session:
        keep_answer(session, context.job_id, answer)


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The worker failed and will not try again."""
    keep_answer(session, context.job_id, {"error": plain_text(reason)})


def _draft(session: Session, context: JobContext) -> tuple[dict[str, str], Manifest | None, int]:
    """Return the draft's files, its manifest and its revision; a draft without a readable manifest gets an answer."""
    draft = session.get_one(EnvironmentDraft, uuid.UUID(context.arguments["environment_id"]))
    try:
        return with_generated(draft.files), read_manifest(draft.files.get(MANIFEST_PATH, "")), draft.revision
    except ManifestInvalid as error:
        keep_answer(session, context.job_id, {"error": f"{MANIFEST_PATH}: {error}"})
        return {}, None, draft.revision
