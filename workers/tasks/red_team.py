"""The jobs of the red team on a draft as it is saved: `environments.attack` and `environments.train_attacker`, which
are two parts of one attack, and `environments.verify_repair`.

None stores rollouts. An attack proposes fixtures; a verified repair may be published.
"""

import time
import uuid

from sqlalchemy.orm import Session

from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.environments.packages import content_hash
from backend.domain.text import plain_text
from backend.domain.vocabulary import CheckStatus
from backend.review.fixtures import judged_fixtures
from workers.environments.checks.registry import CHECKS, run_checks
from workers.environments.checks.subject import CheckSubject
from workers.environments.client import HostRefused
from workers.environments.red_team import LLM_TOKENS, AttackReport, NoFloor, attack
from workers.storage.attacks import AttackRecorder
from workers.storage.env_host import serve
from workers.storage.policies import load_policy
from workers.tasks.children import child_error, run_child
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

TRAINED_MODULE = "workers.training.attacker"
START_SECONDS = 180.0
"""Time that the process of the trained attack has in addition to its budget: it imports torch and leases a server."""
REPAIR_CHECKS = (
    *("starts_and_resets", "agent_fits", "rewards_finite", "steps_and_ends", "answers_known"),
    *("gold_reaches_bound", "degenerate_policies", "fixtures_hold", "judged_fixtures_hold"),
)
"""Checks that a repair must pass. `gold_reaches_bound` must apply, too."""


def run(context: JobContext) -> None:
    """Attack the draft within the budget and keep the exploits, each with its proposed fixture."""
    arguments, recorder = context.arguments, AttackRecorder(context.job_id)
    draft = recorder.read_draft(arguments["environment_id"])
    if draft is None:
        return
    option = arguments.get("policy") or {}
    with transaction() as session:
        attacker = load_policy(session, option) if option else None

    async def search() -> AttackReport:
        async with serve(content_hash(draft.files), draft.files, draft.manifest) as server:
            subject = CheckSubject(draft.manifest, server, files=draft.files, should_stop=recorder.is_canceled)
            seconds, tokens = float(arguments["seconds"]), int(arguments.get("tokens", LLM_TOKENS))
            return await attack(
                subject, seconds=seconds, attacker=attacker, tokens=tokens, on_progress=recorder.progress
            )

    try:
        recorder.finish(run_async(search(), closing=attacker), draft.revision)
    except (NoFloor, HostRefused) as error:
        recorder.fail(str(error))


def train(context: JobContext) -> None:
    """Train a policy on the draft's reward, in a separate process, which records the answer."""
    recorder = AttackRecorder(context.job_id)
    if recorder.read_draft(context.arguments["environment_id"]) is None:
        return
    deadline = time.monotonic() + float(context.arguments["seconds"]) + START_SECONDS
    status = run_child(
        TRAINED_MODULE, [str(context.job_id)], run_id=None, may_continue=lambda: time.monotonic() < deadline
    )
    with transaction() as session:
        is_answered = session.get_one(Job, context.job_id).arguments.get("answer") is not None
    if not is_answered:
        late = f"The training process was ended: it took more than {START_SECONDS:.0f} s longer than its budget."
        error = late if time.monotonic() >= deadline else str(child_error(TRAINED_MODULE, status, None))
        recorder.fail(error)


def verify(context: JobContext) -> None:
    """Run the checks that a repair must pass on the draft."""
    recorder = AttackRecorder(context.job_id)
    draft = recorder.read_draft(context.arguments["environment_id"])
    if draft is None:
        return
    with transaction() as session:
        judged = judged_fixtures(session, uuid.UUID(context.arguments["environment_id"]))
    checks = [check for check in CHECKS if check.id in REPAIR_CHECKS]

    async def examine() -> list[dict[str, object]]:
        async with serve(content_hash(draft.files), draft.files, draft.manifest) as server:
            subject = CheckSubject(draft.manifest, server, files=draft.files, judged=judged)
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
        answer = {"draft_revision": draft.revision, "results": results, "holds": holds, "error": ""}
        with transaction() as session:
            keep_answer(session, context.job_id, answer)
    except HostRefused as error:
        recorder.fail(str(error))


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The worker failed and will not try again."""
    keep_answer(session, context.job_id, {"error": plain_text(reason)})
