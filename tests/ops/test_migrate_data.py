"""`proctor migrate-data` on databases that Proctor 0.1 wrote.

`data_0_1/` holds dumps of two of its databases, named after their schema revisions: the last one after a demo with
graders, verdicts and an effort study (thinned, every table filled), and the first one with a row in each table.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import psycopg
import pytest

from backend.core.embedded import Postgres, socket_folder
from backend.settings import get_settings
from backend.supervisor import preparation
from backend.supervisor.data_folder import open_data_folder
from backend.supervisor.migrate_data import KEPT_TABLES, CannotMigrate, MigratedData, migrate_data
from backend.supervisor.preparation import CannotPrepare, conversion_steps, migrate, revisions
from scripts.migrations import INITIAL, describe_schema
from tests.ops.proctor_process import EMBEDDED, proctor_up

DUMPS = Path(__file__).parent / "data_0_1"
FIRST, LAST = "38e3d2bf51d4", "8c41d7e5a960"
MakeDatabase = Callable[..., str]


def load_dump(url: str, revision: str) -> None:
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute(gzip.decompress((DUMPS / f"{revision}.sql.gz").read_bytes()))


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


def count_rows(url: str) -> dict[str, int]:
    with psycopg.connect(plain(url)) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM public.{table}").fetchone()[0]  # type: ignore[index]
            for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        }


def read_revision(url: str) -> str:
    with psycopg.connect(plain(url)) as connection:
        row = connection.execute("SELECT version_num FROM public.alembic_version").fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
def make_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDatabase]:
    """Create a database on the tests' server, with a dump of 0.1 if given; DATABASE_URL points at it."""
    names = []

    def make(revision: str | None = None, *, template: str = "template0") -> str:
        names.append(f"old_{uuid.uuid4().hex[:8]}")
        with psycopg.connect(plain(database_url), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {names[-1]} TEMPLATE {template}")
        url = database_url.replace("/postgres?", f"/{names[-1]}?")
        if revision:
            load_dump(url, revision)
        monkeypatch.setenv("DATABASE_URL", url)
        get_settings.cache_clear()
        return url

    yield make
    get_settings.cache_clear()
    with psycopg.connect(plain(database_url), autocommit=True) as connection:
        for name in names:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def convert(*, has_backup: bool = True) -> MigratedData | None:
    return migrate_data(get_settings(), Path("/nowhere"), has_backup=has_backup, report=lambda _message: None)


@pytest.mark.parametrize("revision", [FIRST, LAST])
def test_converted_data_keeps_its_rows_and_has_the_initial_then_the_newest_schema(
    make_database: MakeDatabase, database_url: str, revision: str
) -> None:
    url = make_database(revision)
    before = count_rows(url)
    assert all(before[table] for table in KEPT_TABLES)

    migrated = convert()

    assert migrated is not None
    after = count_rows(url)
    assert migrated.revision_before == revision
    assert migrated.rows == {table: before[table] for table in KEPT_TABLES}
    assert {table: after[table] for table in KEPT_TABLES} == migrated.rows
    assert read_revision(url) == INITIAL
    assert convert() is None
    migrate()  # what came after the initial schema, as a start does
    assert describe_schema(url) == describe_schema(database_url)
    assert {table: count_rows(url)[table] for table in KEPT_TABLES} == migrated.rows


def test_every_revision_of_0_1_leads_to_the_initial_one() -> None:
    steps = conversion_steps()

    assert (steps[0].before, steps[-1].before, steps[-1].after) == (FIRST, LAST, INITIAL)
    assert [step.before for step in steps[1:]] == [step.after for step in steps[:-1]]
    assert len(steps) == 18
    assert INITIAL in revisions()[0]


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        (LAST, rf"written by Proctor 0\.1 \(schema revision {LAST}\).*Nothing was changed.*`proctor migrate-data`"),
        ("91c4e7d0ab36", r"written by Proctor 0\.1 \(schema revision 91c4e7d0ab36\)"),
        ("f00d", r"schema revision f00d, which Proctor \d\.\d\.\d does not know.*newer.*Nothing was changed"),
    ],
)
def test_a_start_on_other_data_is_refused_and_changes_nothing(
    make_database: MakeDatabase, revision: str, message: str
) -> None:
    url = make_database(LAST)
    with psycopg.connect(plain(url)) as connection:
        connection.execute("UPDATE public.alembic_version SET version_num = %s", [revision])
    before = describe_schema(url), count_rows(url)

    with pytest.raises(CannotPrepare, match=message):
        migrate()

    assert (describe_schema(url), count_rows(url)) == before
    assert read_revision(url) == revision


def test_a_database_that_is_not_embedded_needs_a_backup(make_database: MakeDatabase) -> None:
    url = make_database(FIRST)

    with pytest.raises(CannotMigrate, match="pg_dump"):
        convert(has_backup=False)

    assert read_revision(url) == FIRST


def test_a_database_in_use_is_not_converted(make_database: MakeDatabase) -> None:
    url = make_database(FIRST)

    with psycopg.connect(plain(url)), pytest.raises(CannotMigrate, match="1 other connections"):
        convert()

    assert read_revision(url) == FIRST


@pytest.mark.parametrize(("revision", "message"), [("f00d", "schema revision f00d"), (None, "the database is empty")])
def test_only_data_of_0_1_is_converted(make_database: MakeDatabase, revision: str | None, message: str) -> None:
    url = make_database()
    if revision:
        with psycopg.connect(plain(url)) as connection:
            connection.execute(f"CREATE TABLE alembic_version AS SELECT '{revision}' AS version_num")

    with pytest.raises(CannotMigrate, match=message):
        convert()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM rollouts", "would change the number of rows in rollouts"),
        ("DROP TABLE rollout_texts; SELECT 1 / 0", "division by zero"),
    ],
)
def test_a_conversion_that_fails_or_would_lose_rows_is_rolled_back(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch, sql: str, message: str
) -> None:
    url = make_database(FIRST)
    before = describe_schema(url), count_rows(url)
    steps = [*conversion_steps(), preparation.ConversionStep(INITIAL, "later", sql)]
    monkeypatch.setattr("backend.supervisor.migrate_data.conversion_steps", lambda: steps)

    with pytest.raises(CannotMigrate, match=message) as refused:
        convert()

    assert "rolled back" in str(refused.value)
    assert (describe_schema(url), count_rows(url)) == before
    assert read_revision(url) == FIRST


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER environment_versions_never_change ON environment_versions",
        "ALTER TABLE rollouts RESET (autovacuum_vacuum_insert_threshold)",
        "ALTER TABLE runs DROP CONSTRAINT fk_runs_checkpoint_id",
        "ALTER TABLE runs DROP CONSTRAINT ck_runs_runkind",
        "DROP INDEX ix_review_items_waiting",
        "ALTER TABLE people ALTER COLUMN name DROP NOT NULL",
        "CREATE OR REPLACE FUNCTION refuse_changed_version() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN END$$",
    ],
)
def test_the_drift_check_compares_more_than_tables(make_database: MakeDatabase, statement: str) -> None:
    url = make_database(FIRST)
    convert()
    intact = describe_schema(url)

    with psycopg.connect(plain(url)) as connection:
        connection.execute(statement)

    assert describe_schema(url) != intact


@pytest.fixture
def old_folder() -> Iterator[Path]:
    """A data folder with an embedded database of 0.1. Its path is short: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pm-"))
    data = folder / "data"
    postgres = Postgres(data / "postgres", socket_folder(data), folder / "postgres.log")
    postgres.start()
    load_dump(postgres.url(), LAST)
    postgres.stop()
    (data / "secret-key").write_text("the key of this installation, which is long enough")
    yield data
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_old_data_folder_is_refused_then_converted_and_served(old_folder: Path) -> None:
    with proctor_up(old_folder) as proctor:
        assert proctor.process.wait(60) == 2
        assert f"written by Proctor 0.1 (schema revision {LAST})" in proctor.errors()

    converted = run_command(old_folder, "--json")
    assert converted.returncode == 0, converted.stderr
    result = json.loads(converted.stdout)
    assert result["revision_before"] == LAST
    backup = Path(result["backup"])
    assert re.fullmatch(r"postgres-0\.1-\d{8}-\d{6}", backup.name)

    kept = Postgres(backup, socket_folder(old_folder), old_folder / "backup.log")
    kept.start()
    assert read_revision(kept.url()) == LAST
    assert count_rows(kept.url())["rollouts"] == result["rows"]["rollouts"]
    kept.stop()

    with proctor_up(old_folder) as proctor:
        url = proctor.wait_until_web()
        headers = {"Authorization": f"Bearer {(old_folder / 'cli-token').read_text().strip()}"}
        runs = httpx.get(f"{url}/api/v1/runs", headers=headers).raise_for_status().text
        assert "showcase: random" in runs


@pytest.mark.slow
def test_a_full_disk_a_missing_database_and_a_running_proctor_refuse_the_conversion(
    old_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = run_command(tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "there is no database in" in missing.stderr
    assert not (tmp_path / "nowhere").exists()

    monkeypatch.setenv("DATABASE_URL", "")
    get_settings.cache_clear()
    running = open_data_folder(old_folder)
    with pytest.raises(CannotMigrate, match="another Proctor runs on the data folder"):
        migrate_data(get_settings(), old_folder, has_backup=False, report=lambda _message: None)
    os.close(running.lock)

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=1))
    with pytest.raises(CannotMigrate, match="of disk space"):
        migrate_data(get_settings(), old_folder, has_backup=False, report=lambda _message: None)
    get_settings.cache_clear()
    assert not list(old_folder.glob("postgres-0.1-*"))


def run_command(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backend.cli", "migrate-data", "--data", str(data), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **EMBEDDED},  # noqa: TID251 - a child's environment
    )
