"""`proctor migrate-data`: convert the data of an older Proctor."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.output import fail, say, write_json
from backend.settings import get_settings
from backend.supervisor.migrate_data import CannotMigrate, migrate_data


def migrate_data_command(
    data: Annotated[
        Path | None, typer.Option("--data", help="Data folder to convert. Default: the folder `proctor up` uses.")
    ] = None,
    has_backup: Annotated[
        bool, typer.Option("--has-backup", help="Confirm that the database of DATABASE_URL has been backed up.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert the data of Proctor 0.1 for this version. Stop Proctor first.

    The embedded database is copied before it is converted. For a database of DATABASE_URL, make a backup and confirm
    it with --has-backup.
    """
    settings = get_settings()
    try:
        migrated = migrate_data(
            settings,
            data or settings.data,
            has_backup=has_backup,
            report=lambda message: say(message, "dim", is_error=True),
        )
    except CannotMigrate as error:
        fail(str(error))
    if as_json:
        write_json(
            {
                "revision_before": migrated.revision_before if migrated else None,
                "rows": migrated.rows if migrated else {},
                "backup": migrated.backup if migrated else None,
            }
        )
    elif migrated is None:
        say("The database already has this version's schema. Nothing to convert.")
    else:
        rows = ", ".join(f"{count:,} {table.replace('_', ' ')}" for table, count in migrated.rows.items())
        say(f"Converted: {rows}.")
        if migrated.backup:
            say(f"Backup: {migrated.backup}. Delete it when you no longer want to go back.")
