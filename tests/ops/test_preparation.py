"""The preparation at every start."""

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.environments.library import library_names
from backend.environments.tables import Environment
from backend.policies.tables import Policy
from backend.settings import PROJECT_ROOT
from backend.supervisor import preparation
from backend.supervisor.preparation import CannotPrepare, furnish, migrate, revisions
from backend.team.tables import ApiToken, Person


def test_the_newest_revision_is_found_without_alembic(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('revision = "aaa"\ndown_revision = None\n')
    (tmp_path / "b.py").write_text("revision: str = 'bbb'\ndown_revision: str | None = 'aaa'\n")

    assert revisions(tmp_path) == ({"aaa", "bbb"}, "bbb")


def test_there_is_one_newest_revision() -> None:
    known, head = revisions(PROJECT_ROOT / "migrations" / "versions")

    assert head in known


@pytest.mark.slow
def test_an_empty_database_is_migrated_and_a_second_start_finds_nothing_to_do(
    second_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(_plain(second_database_url), autocommit=True) as connection:
        connection.execute("CREATE DATABASE prepared")
    url = second_database_url.replace("/committed?", "/prepared?")
    monkeypatch.setenv("DATABASE_URL", url)
    preparation.get_settings.cache_clear()

    head = migrate()
    monkeypatch.setattr("alembic.command.upgrade", lambda *_: pytest.fail("nothing is to do"))

    assert migrate() == head == revisions()[1]
    preparation.get_settings.cache_clear()


def test_a_database_of_a_newer_version_is_refused(installation: None, second_database_url: str) -> None:
    with psycopg.connect(_plain(second_database_url)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
    try:
        with pytest.raises(CannotPrepare, match=r"schema revision f00d, which Proctor .* does not know"):
            migrate()
    finally:
        with psycopg.connect(_plain(second_database_url)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = %s", [revisions()[1]])


@pytest.mark.slow
def test_it_furnishes_once_however_often_it_runs(installation: None) -> None:
    first = furnish(is_local=True)
    second = furnish(is_local=True)

    assert first["link"] != second["link"]
    with transaction() as session:
        environments = session.scalars(select(Environment.name).order_by(Environment.name)).all()
        policies = session.scalars(select(Policy.name)).all()
        tokens = session.scalars(select(ApiToken).where(ApiToken.revoked_at.is_(None))).all()
    assert environments == library_names()
    assert {"gold", "random", "constant"} <= set(policies)
    assert len(policies) == len(set(policies))
    assert len(tokens) == 1


@pytest.mark.slow
def test_the_token_of_an_earlier_start_continues_working(
    installation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_DATA", str(tmp_path))
    preparation.get_settings.cache_clear()
    token = furnish(is_local=True)["token"]
    (tmp_path / "cli-token").write_text(f"{token}\n")

    assert furnish(is_local=True)["token"] is None
    (tmp_path / "cli-token").write_text("pt_forged\n")
    assert furnish(is_local=True)["token"] is not None
    preparation.get_settings.cache_clear()


@pytest.mark.slow
def test_a_token_whose_administrator_may_no_longer_manage_is_replaced(
    installation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_DATA", str(tmp_path))
    preparation.get_settings.cache_clear()
    (tmp_path / "cli-token").write_text(f"{furnish(is_local=True)['token']}\n")
    with transaction() as session:
        session.scalars(select(Person)).one().role = Role.VIEWER
        session.add(Person(email="next@example.org", name="Next", role=Role.ADMIN))

    assert furnish(is_local=True)["token"] is not None
    preparation.get_settings.cache_clear()


@pytest.mark.slow
def test_only_a_local_start_leaves_a_token(installation: None) -> None:
    assert furnish(is_local=False)["token"] is None


def _plain(url: str) -> str:
    return url.replace("+psycopg", "")
