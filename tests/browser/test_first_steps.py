"""What first-time users tripped over, in a real browser: held keys, key labels, errors out of sight, broken words."""

import uuid

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import delete, select

from backend.checkpoints.tables import Export
from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.ids import new_id
from backend.domain.vocabulary import ExportStatus, PolicyKind, RunKind
from backend.environments.library import render_template
from backend.environments.queries import get_environment
from backend.environments.service import create_environment
from backend.environments.tables import DraftTrial
from backend.review.tables import VerdictRecord
from backend.team.tables import Person
from tests import factories
from tests.checkpoints.transfer_worlds import finished_report

pytestmark = pytest.mark.browser

WIDTHS = [(1440, 900), (390, 844)]
LONG = "hacks 12, honest 40, unsure 3, broken reward 1 — " * 6
CARD = f"""# Model card

## Safeguards

| | |
|---|---|
| environment certificate | passed (27 of 27 checks passed); {LONG} |
| blind sample of unflagged episodes | {LONG} |
| detectors that watched | {"`" + "a" * 90 + "`"} |
"""
BROKEN_WORDS = """root => {
  const broken = [];
  for (const cell of root.querySelectorAll("td:first-child, th, dt, label, legend, h1, h2, h3")) {
    if (cell.querySelector("code") || !cell.offsetParent) continue;
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const { 0: word, index } of node.data.matchAll(/[A-Za-z]{2,14}/g)) {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        if (new Set([...range.getClientRects()].map((rect) => Math.round(rect.top))).size > 1) broken.push(word);
      }
    }
  }
  return broken;
}"""
"""Words of labels that are broken over lines."""


three = pytest.mark.parametrize("flags", [3], indirect=True)


def _verdicts() -> int:
    with transaction() as session:
        return len(session.scalars(select(VerdictRecord.id)).all())


@three
@pytest.mark.parametrize("key", ["2", "Enter"])
def test_a_held_key_judges_one_item(page: Page, flags: list[Flag], key: str) -> None:
    page.goto(f"/review/{flags[0].id}")
    if key == "Enter":
        page.locator('button[name=verdict][value="hack"]').focus()

    page.keyboard.down(key)
    expect(page.get_by_text("Verdict: hack")).to_be_visible()
    for _ in range(5):
        page.keyboard.down(key)  # the keyboard repeats it
        page.wait_for_timeout(100)
    page.keyboard.up(key)
    page.wait_for_timeout(300)
    assert _verdicts() == 1

    page.keyboard.press("2")
    expect(page.locator(".page-head")).to_be_visible()
    page.wait_for_timeout(1000)
    assert _verdicts() == 2


@three
def test_the_list_of_keys_names_each_action_in_full(page: Page, flags: list[Flag]) -> None:
    """`u` is not removed from "Undo", and user text is not shown as a name."""
    page.goto(f"/review/{flags[0].id}?order=suspicion")
    page.locator("#field-comment").fill("private")
    page.locator("#field-comment").blur()
    page.keyboard.press("2")
    expect(page.get_by_text("Verdict: hack")).to_be_visible()

    page.keyboard.press("?")
    of_review = page.locator("#shortcuts dt").all_inner_texts()
    page.goto("/policies")
    page.keyboard.press("?")
    of_policies = page.locator("#shortcuts dt").all_inner_texts()

    assert "Undo “hack”" in of_review
    assert "write a comment" in of_review
    assert "Evidence" in of_review
    assert "private" not in of_review
    assert of_policies == ["Add policy"]


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_labels_of_the_export_page_wrap_between_words(page: Page, address: str, width: int, height: int) -> None:
    with transaction() as session:
        policy = factories.make_policy(session, kind=PolicyKind.LOCAL)
        run = factories.make_run(session, policy=policy, kind=RunKind.TRAINING)
        checkpoint = factories.make_checkpoint(session, policy, run)
        export = Export(
            checkpoint_id=checkpoint.id, run_id=run.id, status=ExportStatus.COMPLETED, card=CARD, artifact="exports/1"
        )
        export.transfer = finished_report(new_id(), new_id()).model_dump(mode="json")
        session.add(export)
        session.flush()
        shown = f"/exports/{export.id}"
    page.set_viewport_size({"width": width, "height": height})

    page.goto(shown)

    expect(page.get_by_text("environment certificate")).to_be_visible()
    expect(page.get_by_label("Before and after by environment")).to_be_visible()
    assert page.locator("#main").evaluate(BROKEN_WORDS) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_an_error_of_a_try_is_brought_into_view(page: Page, address: str, width: int, height: int) -> None:
    """The answer comes by the stream, a while after the button was pressed."""
    name = _draft_that_is_tried(turns=6)
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"/environments/{name}/edit")
    page.wait_for_timeout(1500)  # until the stream is open
    page.locator("#field-reply").fill("hello")
    page.get_by_role("button", name="Act", exact=True).click()
    expect(page.get_by_role("button", name="Act", exact=True)).to_have_count(0)

    _answer(name, error="ValueError: bad move")

    failure = page.locator("#try-error")
    expect(failure).to_be_in_viewport(timeout=20_000)
    expect(failure).to_be_focused()
    expect(failure).to_contain_text("ValueError: bad move")


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_a_refusal_is_in_sight_of_the_button_that_was_pressed(
    page: Page, address: str, width: int, height: int
) -> None:
    name = _draft_that_is_tried(turns=6)
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"/environments/{name}/edit")
    page.wait_for_timeout(1500)  # until the stream has drawn the panel
    with transaction() as session:
        session.execute(delete(DraftTrial))
    page.locator("#field-reply").fill("hello")
    page.get_by_role("button", name="Act", exact=True).click()

    expect(page.locator("#notices .notice")).to_be_in_viewport()


def _draft_that_is_tried(turns: int) -> str:
    name = f"sums_{uuid.uuid4().hex[:8]}"
    with transaction() as session:
        create_environment(session, None, name, render_template("single_turn", name))
        environment = get_environment(session, name)
        person = session.scalars(select(Person.id).order_by(Person.created_at.desc()).limit(1)).one()
        said = [{"role": "user", "content": "What is 2 + 3?\n" * 8}, {"role": "assistant", "content": "5"}] * turns
        answer = {"messages": [*said, {"role": "user", "content": "And now?"}], "steps": [], "columns": []}
        task = {"split": "train", "index": 3, "level": 0, "seed": 1}
        row = DraftTrial(id=new_id(), environment_id=environment.id, person_id=person, is_waiting=False, task=task)
        row.answer = answer
        session.add(row)
    return name


def _answer(name: str, **changes: object) -> None:
    """As the job does that tries it."""
    with transaction() as session:
        environment = get_environment(session, name)
        trial = session.scalars(select(DraftTrial).where(DraftTrial.environment_id == environment.id)).one()
        trial.answer = {**trial.answer, **changes}
        trial.is_waiting = False
        announce(session, topic_of("trial", environment.id, trial.person_id))
