"""An administrator makes a project, gives a role in it, moves an environment there and back, and works in it."""

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.environments.tables import EnvironmentDraft
from tests import factories

pytestmark = pytest.mark.browser


def test_a_project_from_its_creation_to_an_undone_move(page: Page) -> None:
    with transaction() as session:
        environment = factories.make_environment(session, "algebra")
        run = factories.make_run(session, factories.make_environment_version(session, environment), name="first try")
        session.add(EnvironmentDraft(environment_id=environment.id, files={}))
        factories.make_person(session, Role.VIEWER, "Grace")
        name = run.name
    page.goto("/team")
    expect(page.get_by_label("Project", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Projects").click()
    page.get_by_label("Name").fill("Math tutor")
    page.get_by_role("button", name="Create project").click()
    expect(page.get_by_role("heading", name="Math tutor")).to_be_visible()
    page.get_by_label("Person").select_option(label="Grace (viewer)")
    page.get_by_label("Role in this project").last.select_option("author")
    page.get_by_role("button", name="Give role").click()
    expect(page.get_by_role("cell", name="Grace")).to_be_visible()

    page.goto("/environments/algebra")
    page.get_by_label("Move to project").select_option(label="Math tutor")
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_text("Moved to Math tutor, with 1 item that belongs to it")).to_be_visible()

    page.get_by_label("Project", exact=True).select_option(label="Math tutor")
    page.wait_for_url("**/")
    page.goto("/runs")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    page.get_by_label(f"Select {name}").check()
    page.get_by_label("Tags, separated by commas").fill("baseline")
    page.get_by_role("button", name="Add tag").click()
    expect(page.get_by_role("link", name="baseline")).to_be_visible()
    expect(page.get_by_label(f"Select {name}")).to_be_checked()
    page.goto("/projects")
    page.get_by_role("link", name="Math tutor").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Moved back to Default")).to_be_visible()
    page.goto("/runs")
    expect(page.get_by_role("link", name=name)).to_have_count(0)
