"""Saving a draft: nothing is lost when two tabs save."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.environments.drafts import DraftChanged, EnvironmentIsArchived, save_draft
from backend.environments.queries import get_draft
from backend.environments.service import create_environment
from backend.errors import InvalidInput
from backend.team.tables import AuditEvent
from backend.web.identity import Actor
from tests.environments.packages import make_files
from tests.factories import make_person

CHANGED = make_files() | {"README.md": "# Changed\n"}


def test_it_takes_the_files_and_counts_up(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    assert save_draft(session, None, environment, CHANGED, 1).revision == 2
    assert get_draft(session, environment).files == CHANGED


def test_a_form_sent_twice_changes_nothing_more(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    assert save_draft(session, None, environment, make_files(), 1).revision == 1


def test_the_second_tab_is_reported_and_loses_nothing(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    save_draft(session, None, environment, CHANGED, 1)
    with pytest.raises(DraftChanged, match="revision 2"):
        save_draft(session, None, environment, make_files() | {"README.md": "# Mine\n"}, 1)
    assert get_draft(session, environment).files == CHANGED


def test_it_refuses_what_is_not_a_package(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    with pytest.raises(InvalidInput, match=r"openenv\.yaml"):
        save_draft(session, None, environment, {"a.py": ""}, 1)


def test_it_keeps_a_broken_manifest_because_it_is_a_draft(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    broken = make_files() | {"openenv.yaml": "name: ["}
    assert save_draft(session, None, environment, broken, 1).files == broken


def test_an_archived_environment_is_not_changed(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    environment.archived_at = datetime.now(UTC)
    with pytest.raises(EnvironmentIsArchived):
        save_draft(session, None, environment, CHANGED, 1)
    environment.archived_at = None
    assert save_draft(session, None, environment, CHANGED, 1).revision == 2


def test_saves_within_ten_minutes_make_one_audit_entry(session: Session):
    person = make_person(session)
    actor = Actor(person.id, Role.AUTHOR, name=person.name)
    environment = create_environment(session, None, "guess", make_files())
    edits = select(func.count()).where(AuditEvent.action == "environment.edit")
    draft = save_draft(session, actor, environment, CHANGED, 1)
    save_draft(session, actor, environment, make_files(), 2)
    assert session.scalar(edits) == 1
    draft.updated_at = datetime.now(UTC) - timedelta(minutes=11)
    session.flush()
    save_draft(session, actor, environment, CHANGED, 3)
    assert session.scalar(edits) == 2
