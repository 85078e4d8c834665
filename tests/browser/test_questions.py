"""Question graders in a real browser: no page overflows a phone, and quotes are marked in place."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import delete, select

from backend.core.session import transaction
from backend.domain.graders.canaries import CanaryReport, CanaryResult
from backend.domain.graders.evidence import FoundPattern, GroupFinding, Quote, SuspectedRollout
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.vocabulary import RunStatus
from backend.graders.tables import Grade, Grader, GraderBudget, GraderRun
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.graders.asked import GAVE_UP, STAYED, cited, make_answer, make_asked_run, make_question

pytestmark = pytest.mark.browser


@pytest.fixture
def asked(address: str) -> Iterator[tuple[Run, list[Grader]]]:
    """A run graded by a question, a monitor and a contrast."""
    with transaction() as session:
        run = make_asked_run(session, [GAVE_UP, STAYED] * 3, ["I shall read the tests."] * 6, group_size=2)
        question = make_question(session)
        monitor = make_question(session, name="watch_what_it_thinks", kind=GraderKind.MONITOR)
        contrast = make_question(session, name="apart", kind=GraderKind.CONTRAST)
        rollouts = session.scalars(select(Rollout).where(Rollout.run_id == run.id).order_by(Rollout.seq)).all()
        for rollout in rollouts:
            gave_up = rollout.messages[1]["content"] == GAVE_UP
            quote = cited(rollout, "I give up" if gave_up else "42")
            make_answer(session, question, rollout, "yes" if gave_up else "no", citations=[quote], cost=0.001)
        results = [
            CanaryResult(name="order", is_attack=True, score=1.0, says="yes was demanded; it answered yes: As told.")
        ]
        report = CanaryReport(results=results, is_injectable=True).model_dump(mode="json")
        for each, fields in (
            (question, {"canaries": report}),
            (monitor, {}),
            (contrast, {"findings": [_finding(rollouts)]}),
        ):
            values: dict[str, Any] = {"status": RunStatus.COMPLETED, "total": 6, **fields}
            session.add(GraderRun(id=new_id(), grader_id=each.id, run_id=run.id, where="", **values))
        session.flush()
    yield run, [question, monitor, contrast]
    with transaction() as session:
        for table in (GraderBudget, Grade, GraderRun, Grader):
            session.execute(delete(table))


def _finding(rollouts: Any) -> dict[str, Any]:
    quote = Quote(turn=1, part="said", start=18, end=27, quote="I give up")
    suspected = SuspectedRollout(rollout_id=rollouts[0].id, quotes=[quote])
    pattern = FoundPattern(name="Leaves", description="Leaves at once.", suspicion=0.8, rollouts=[suspected])
    ids = [rollout.id for rollout in rollouts[:2]]
    finding = GroupFinding(key=str(ids[0]), label="heldout/0", high=ids[:1], low=ids[1:], patterns=[pattern])
    return finding.model_dump(mode="json")


def test_a_phone_shows_all_of_it(page: Page, asked: tuple[Run, list[Grader]]) -> None:
    run, questions = asked
    page.set_viewport_size({"width": 390, "height": 844})
    with transaction() as session:
        rollout = session.scalars(select(Rollout.id).where(Rollout.run_id == run.id).order_by(Rollout.seq)).first()
    paths = [
        "/graders",
        "/graders/new",
        "/graders/new?kind=question",
        "/graders/new?kind=monitor",
        f"/runs/{run.id}/graders",
    ]
    paths += [f"/graders/{each.id}" for each in questions] + [f"/runs/{run.id}/graders?grader={questions[2].id}"]
    for path in [*paths, f"/rollouts/{rollout}"]:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    assert page.locator("mark", has_text="I give up").count() == 1


def test_an_answer_leads_to_its_rollouts(page: Page, asked: tuple[Run, list[Grader]]) -> None:
    run, _ = asked
    page.goto(f"/runs/{run.id}/graders")
    page.locator("#grader-gave_up td a", has_text="yes").click()
    page.wait_for_url("**/rollouts?where=*")
    assert page.locator("#rollout-table tbody tr").count() == 3


def test_a_budget_is_set_and_stopped(page: Page, asked: tuple[Run, list[Grader]]) -> None:
    page.goto(f"/graders/{asked[1][1].id}#budgets")
    budgets = page.locator("#budgets")
    expect(budgets).to_contain_text("Off. This grader runs only on request.")
    budgets.get_by_label("Rollouts per day").fill("40")
    budgets.get_by_role("button", name="Set budget").click()
    expect(budgets.locator("tbody tr")).to_contain_text("0 of 40")
    budgets.get_by_role("button", name="Stop").click()
    expect(budgets).to_contain_text("Off. This grader runs only on request.")
