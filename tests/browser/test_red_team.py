"""The red team in a real browser: an attack is started, and its exploit becomes a fixture of the draft."""

import uuid

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select

from backend.core.queue import keep_answer
from backend.core.session import transaction
from backend.core.tables import Job
from backend.environments import red_team
from backend.environments.library import render_template
from backend.environments.service import create_environment
from tests.environments.test_red_team import EXPLOIT

pytestmark = pytest.mark.browser


def test_an_exploit_becomes_a_fixture(page: Page, address: str) -> None:
    name = f"guess_{uuid.uuid4().hex[:8]}"
    with transaction() as session:
        create_environment(session, None, name, render_template("single_turn", name))
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/environments/{name}/red-team")
    page.get_by_label("Time budget").fill("10")
    page.get_by_role("button", name="Attack the draft").click()
    expect(page.locator("#red-team progress")).to_be_visible()
    with transaction() as session:
        job = session.scalars(
            select(Job).where(Job.name == red_team.ATTACK_JOB).order_by(Job.created_at.desc())
        ).first()
        assert job is not None
        answer = {"draft_revision": 1, "exploits": [EXPLOIT], "notes": [], "error": ""}
        keep_answer(session, job.id, answer)  # the part of the worker
    exploits = page.get_by_label("Exploits")
    expect(exploits).to_contain_text("raw, 1 turns")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    exploits.get_by_role("button", name="Add").click()
    exploits.get_by_role("link", name="in the draft").click()
    expect(page.locator(".ace_line").filter(has_text="<x>")).to_be_visible()
