"""One export in a process of its own: `python -m workers.training.export <export id>`.

The checkpoint is loaded afresh (never the model that trains), written anew in the wanted form, proven by the passport
and zipped.
"""

import json
import shutil
import sys
import tempfile
import uuid
import zipfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint, Export
from backend.core.artifacts import get_folder, put_file, put_folder
from backend.core.events import announce
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.checkpoints.exports import TITLES, ExportOptions
from backend.domain.vocabulary import ExportStatus
from backend.settings import get_settings
from workers.models.load import ModelUnusable
from workers.storage.digests import digest_of
from workers.tasks.children import must_run_child
from workers.training.card import write_card
from workers.training.exporting.facts import read_facts
from workers.training.exporting.forms import write_form
from workers.training.exporting.manifest import About, digests, write_manifest, write_script
from workers.training.passport import PassportRequest

PASSPORT = "workers.training.passport"
_DATE = (2000, 1, 1, 0, 0, 0)

logger = structlog.get_logger(__name__)


class Refused(Exception):
    """The export is not handed out."""


def export(export_id: uuid.UUID) -> ExportStatus:
    """Make the export and record how it ended."""
    scratch = get_settings().data / "exporting"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix=f"{export_id}-") as folder:
        try:
            found = _make(export_id, Path(folder))
        except (Refused, ModelUnusable) as refusal:
            logger.warning("export refused", reason=str(refusal))
            return _finish(export_id, ExportStatus.REFUSED, reason=str(refusal))
    return _finish(export_id, ExportStatus.COMPLETED, **found)


def _make(export_id: uuid.UUID, folder: Path) -> dict[str, Any]:
    with transaction() as session:
        row = session.get_one(Export, export_id)
        checkpoint = session.get_one(Checkpoint, row.checkpoint_id)
        form, options = row.form, ExportOptions.model_validate(row.options)
    if checkpoint.pruned_at is not None:
        raise Refused("The weights of this checkpoint were pruned.")
    _tell(export_id, f"writing the files: {TITLES[form]}", 0)
    original = get_folder(checkpoint.artifact, folder / "original")
    made = folder / "export"
    written = write_form(form, original, made, gguf_type=options.gguf_type)
    _tell(export_id, "loading the files again and examining them", 1)
    passport = _issue_passport(
        folder, PassportRequest(str(made), str(original), str(checkpoint.id), digests(made), form, written.dtype)
    )
    if not passport["passed"]:
        raise _refusal(export_id, passport)
    _tell(export_id, "packing", 2)
    facts = read_facts(checkpoint.id)
    about = About(form, written, facts.manifest.proctor.agent.system, options.licence)
    card = write_card(facts, about, passport)
    (made / "README.md").write_text(card)
    (made / "passport.json").write_text(json.dumps(passport, indent=2))
    write_script(made)
    files = write_manifest(made, checkpoint, about)
    packed = folder / "export.zip"
    pack(made, packed, files)
    return {"card": card, "passport": {**passport, "sizes": sizes_of(made)}, **_store(export_id, made, packed, options)}


def _store(export_id: uuid.UUID, made: Path, packed: Path, options: ExportOptions) -> dict[str, Any]:
    """The zip, which is what is downloaded; as a folder too, where other programs shall read it."""
    key = f"exports/{export_id}.zip"
    put_file(packed, key)
    if options.is_stored:
        options = options.model_copy(update={"stored": f"exports/{export_id}"})
        put_folder(made, str(options.stored))
    return {"artifact": key, "options": options.model_dump(mode="json")}


def _issue_passport(folder: Path, request: PassportRequest) -> dict[str, Any]:
    """In a fresh process, so that nothing that is still in memory can stand in for the files."""
    asked = folder / "request.json"
    asked.write_text(json.dumps(asdict(request)))
    must_run_child(PASSPORT, [str(asked)], run_id=None)
    passport: dict[str, Any] = json.loads((folder / "passport.json").read_text())
    return passport


def _refusal(export_id: uuid.UUID, passport: dict[str, Any]) -> Refused:
    with transaction() as session:
        session.get_one(Export, export_id).passport = passport
    return Refused(f"The passport was refused: {passport['reason']}.")


def sizes_of(made: Path) -> dict[str, int]:
    """Bytes of each file, by name."""
    return {path.name: path.stat().st_size for path in sorted(made.iterdir())}


def pack(made: Path, target: Path, files: dict[str, str]) -> None:
    """Zip the folder, then read the zip back: what is handed out is what was proven."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(made.iterdir()):
            with (
                archive.open(zipfile.ZipInfo(path.name, _DATE), "w", force_zip64=True) as entry,
                path.open("rb") as file,
            ):
                shutil.copyfileobj(file, entry, 1 << 20)
    with tempfile.TemporaryDirectory(dir=target.parent) as unpacked, zipfile.ZipFile(target) as archive:
        archive.extractall(unpacked)
        changed = [name for name, digest in files.items() if digest_of(Path(unpacked) / name) != digest]
    if changed:
        raise Refused(f"the zip does not hold what was proven: {', '.join(changed)}")


def _tell(export_id: uuid.UUID, phase: str, done: int) -> None:
    with transaction() as session:
        session.get_one(Export, export_id).progress = {"phase": phase, "done": done, "total": 3}
        announce(session, f"export:{export_id}")


def _finish(export_id: uuid.UUID, status: ExportStatus, **found: Any) -> ExportStatus:
    with transaction() as session:
        row = session.get_one(Export, export_id)
        row.status = status
        row.ended_at = datetime.now(UTC)
        row.progress = {"phase": str(status), "done": 3, "total": 3}
        for name, value in found.items():
            setattr(row, name, value)
        announce(session, f"export:{export_id}")
    return status


def main() -> int:
    export_id = uuid.UUID(sys.argv[1])
    configure_logging("export")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(export_id=str(export_id))
    logger.info("export ended", status=export(export_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
