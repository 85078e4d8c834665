"""Manage the database schema.

python scripts/migrations.py check         migrate an empty database and compare it with the models and handwritten.sql;
                                           find new columns that a table with rows refuses
python scripts/migrations.py new MESSAGE   write a migration for changed models
python scripts/migrations.py upgrade       migrate the database of DATABASE_URL
python scripts/migrations.py initial       rewrite the initial revision; refused once a later revision exists
"""

import difflib
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.operations.ops import CreateForeignKeyOp, ExecuteSQLOp, MigrationScript
from alembic.script import Script
from sqlalchemy import Column, Engine, event

from backend.core.embedded import Postgres
from backend.core.session import make_engine
from backend.core.tables import load_tables
from backend.settings import PROJECT_ROOT, get_settings

FOLDER = PROJECT_ROOT / "migrations"
INITIAL = "initial_0_2"

_IN_PUBLIC = "relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"
_CATALOG = {
    "extension": "SELECT extname FROM pg_extension",
    "table": f"SELECT relname, reloptions FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'S') AND {_IN_PUBLIC}",
    "column": f"""
        SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), attidentity,
               attgenerated, attcollation::regcollation::text
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attnum > 0 AND NOT attisdropped AND relkind IN ('r', 'v', 'm') AND {_IN_PUBLIC}""",
    "constraint": f"""
        SELECT relname, conname, pg_get_constraintdef(pg_constraint.oid), convalidated
        FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE contype <> 'n' AND {_IN_PUBLIC}""",
    "index": """
        SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'""",
    "trigger": f"""
        SELECT pg_get_triggerdef(pg_trigger.oid)
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE NOT tgisinternal AND {_IN_PUBLIC}""",
    "function": r"""
        SELECT regexp_replace(pg_get_functiondef(oid), '\s+', ' ', 'g') FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'p')
          AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')""",
    "type": "SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typtype IN ('e', 'd')",
}
"""Queries for everything a migration can create in a schema. NOT NULL is compared as a property of the column."""
_CASTS = re.compile(r"::(character varying|text)(\[\])?|[()]")
"""Postgres writes `CHECK (x IN (…))` with other casts and parentheses after pg_dump and pg_restore."""

_ALTERED = re.compile(r"ALTER TABLE\s+(?:IF EXISTS\s+)?(?:ONLY\s+)?(\S+)\s+([^;]*)", re.IGNORECASE)
_ADDED = re.compile(r"ADD COLUMN\s+(?:IF NOT EXISTS\s+)?(\S+)(.*?)(?=,\s*ADD COLUMN|$)", re.IGNORECASE | re.DOTALL)
_FILLED = re.compile(r"\b(DEFAULT|GENERATED|\w*SERIAL)\b", re.IGNORECASE)
_NEEDS_DEFAULT = (
    "is NOT NULL without a default, which a table with rows refuses: add a server_default, such as text('0'), to the"
    " column in its model"
)


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING)
    match arguments:
        case ["check"]:
            return check()
        case ["new", message] if message:
            with empty_database() as url:
                command.upgrade(configuration(url), "head")
                write_revision(configuration(url), message)
        case ["upgrade"]:
            if not get_settings().database_url:
                sys.exit("set DATABASE_URL; `proctor up` migrates the embedded database when it starts")
            command.upgrade(configuration(get_settings().database_url), "head")
        case ["initial"]:
            write_initial_revision()
        case _:
            sys.exit(__doc__)
    return 0


def check() -> int:
    """Print each new column that needs a default, and each difference between the migrations' result and the models;
    return the exit status."""
    with empty_database() as url:
        with recorded_statements() as statements:
            command.upgrade(configuration(url), "head")
        migrated = describe_schema(url)
    refused = [column for statement in statements for column in columns_without_default(statement)]
    sys.stdout.writelines(f"{column} {_NEEDS_DEFAULT}\n" for column in refused)
    with empty_database() as url:
        create_from_models(url)
        declared = describe_schema(url)
    drift = [line for line in difflib.ndiff(migrated, declared) if line.startswith(("- ", "+ "))]
    if drift:
        sys.stdout.write("the migrations (-) and the models with migrations/handwritten.sql (+) differ:\n")
        sys.stdout.writelines(f"{line}\n" for line in drift)
    return 1 if drift or refused else 0


def columns_without_default(statement: str) -> list[str]:
    """Columns that SQL adds as NOT NULL without a default: Postgres refuses them in a table that has rows."""
    return [
        f"{table}.{column}".replace('"', "")
        for table, actions in _ALTERED.findall(statement)
        for column, declaration in _ADDED.findall(actions)
        if "NOT NULL" in declaration.upper() and not _FILLED.search(declaration)
    ]


@contextmanager
def recorded_statements() -> Iterator[list[str]]:
    """Collect the SQL that any engine executes."""
    statements: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", record)


def write_revision(config: Config, message: str) -> Path:
    """Write a formatted migration for changed models. Exits if a table with rows would refuse a new column."""

    def refuse(_context: object, _revision: object, scripts: list[MigrationScript]) -> None:
        assert scripts[0].upgrade_ops is not None
        for operation in scripts[0].upgrade_ops.as_diffs():
            match operation:
                case ("add_column", _, str(table), Column(nullable=False, server_default=None) as column):
                    sys.exit(f"{table}.{column.name} {_NEEDS_DEFAULT}")

    message = f"{message[0].upper()}{message[1:].rstrip('.')}."
    script = command.revision(config, message=message, autogenerate=True, process_revision_directives=refuse)
    assert isinstance(script, Script)
    tidy(Path(script.path))
    return Path(script.path)


def tidy(file: Path) -> None:
    """Remove Alembic's comments and unused imports, and format the file."""
    file.write_text(re.sub(r" *# ### .*\n", "", file.read_text()))
    for verb in (["check", "--fix"], ["format"]):
        subprocess.run([sys.executable, "-m", "ruff", *verb, "--quiet", file], check=True)


def write_initial_revision() -> None:
    """Replace the only revision by one that creates the models' tables and the objects of handwritten.sql."""
    file = FOLDER / "versions" / f"{INITIAL}.py"
    if later := sorted(other.name for other in file.parent.glob("*.py") if other != file):
        sys.exit(f"the initial revision is final: {', '.join(later)} builds on it. Use `new MESSAGE` instead")
    file.unlink(missing_ok=True)

    def complete(_context: object, _revision: object, scripts: list[MigrationScript]) -> None:
        """Add foreign keys of tables that refer to each other, which autogenerate omits, and handwritten.sql."""
        operations = scripts[0].upgrade_ops
        assert operations is not None
        extensions, others = handwritten()
        keys = [key for table in load_tables().sorted_tables for key in table.foreign_key_constraints if key.use_alter]
        operations.ops = [
            *map(ExecuteSQLOp, extensions),
            *operations.ops,
            *map(CreateForeignKeyOp.from_constraint, keys),
            *map(ExecuteSQLOp, others),
        ]

    with empty_database() as url:
        config = configuration(url)
        config.set_main_option("file_template", "%%(rev)s")
        command.revision(
            config,
            message="Initial schema of 0.2, written by scripts/migrations.py.",
            autogenerate=True,
            rev_id=INITIAL,
            process_revision_directives=complete,
        )
    tidy(file)


def handwritten() -> tuple[list[str], list[str]]:
    """The statements of handwritten.sql: extensions, which the tables need, and all others, which need the tables."""
    text = re.sub(r"^--.*\n", "", (FOLDER / "handwritten.sql").read_text(), flags=re.MULTILINE)
    statements = [statement.strip() for statement in re.split(r"\n\n+", text) if statement.strip()]
    extensions = [statement for statement in statements if statement.startswith("CREATE EXTENSION")]
    return extensions, [statement for statement in statements if statement not in extensions]


def create_from_models(url: str) -> None:
    """Create the schema without migrations."""
    extensions, others = handwritten()
    engine = make_engine(url)
    with engine.begin() as connection:
        for statement in extensions:
            connection.exec_driver_sql(statement)
        load_tables().create_all(connection)
        for statement in others:
            connection.exec_driver_sql(statement)
    engine.dispose()


def describe_schema(url: str) -> list[str]:
    """One line per object of the database, sorted; two databases with equal lines have the same schema.

    The order of columns in a table and casts in CHECK constraints do not count.
    """
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        lines = [
            f"{kind}: {' | '.join(map(str, row))}"
            for kind, query in _CATALOG.items()
            for row in connection.execute(query)
        ]
    return sorted(_CASTS.sub("", line) if "| CHECK (" in line else line for line in lines)


def configuration(url: str) -> Config:
    config = Config(PROJECT_ROOT / "alembic.ini", stdout=sys.stderr)
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


@contextmanager
def empty_database() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pm-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        postgres = Postgres(folder / "postgres", folder / "run", folder / "postgres.log", is_disposable=True)
        postgres.start()
        try:
            yield postgres.url()
        finally:
            postgres.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
