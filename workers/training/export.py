"""Export a checkpoint in a separate process: `python -m workers.training.export <export id>`.

The checkpoint is loaded from its files, written in the requested form, verified by the passport, and zipped.
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
from workers.training.exporting import inference
from workers.training.exporting.card import read_facts, write_card
from workers.training.exporting.files import SCRIPT, ExportDescription, digests, write_export, write_manifest
from workers.training.passport import PassportRequest

PASSPORT = "workers.training.passport"
TRANSFER = "transfer.json"
PHASES = ("writing the files: {}", "reloading and evaluating the files", "packing")
_ZIP_DATE = (2000, 1, 1, 0, 0, 0)

logger = structlog.get_logger(__name__)


class ExportRefused(Exception):
    """The export was not verified."""


def export(export_id: uuid.UUID) -> ExportStatus:
    """Make the export and record how it ended."""
    scratch = get_settings().data / "exporting"
    scratch.mkdir(parents=True, exist_ok=True)
    status = ExportStatus.COMPLETED
    with tempfile.TemporaryDirectory(dir=scratch, prefix=f"{export_id}-") as folder:
        try:
            fields = _make(export_id, Path(folder))
        except (ExportRefused, ModelUnusable) as refusal:
            logger.warning("export refused", reason=str(refusal))
            status, fields = ExportStatus.REFUSED, {"reason": str(refusal)}
    progress = {"phase": str(status), "done": len(PHASES), "total": len(PHASES)}
    _update(export_id, **fields, status=status, progress=progress, ended_at=datetime.now(UTC))
    return status


def _make(export_id: uuid.UUID, folder: Path) -> dict[str, object]:
    """Returns the fields of the completed export."""
    with transaction() as session:
        row = session.get_one(Export, export_id)
        checkpoint = session.get_one(Checkpoint, row.checkpoint_id)
        form, options, transfer = row.form, ExportOptions.model_validate(row.options), row.transfer_report
    if checkpoint.pruned_at is not None:
        raise ExportRefused("The weights of this checkpoint were pruned.")

    def begin(phase: int) -> None:
        progress = {"phase": PHASES[phase].format(TITLES[form]), "done": phase, "total": len(PHASES)}
        _update(export_id, progress=progress)

    begin(0)
    original = get_folder(checkpoint.artifact, folder / "original")
    files = folder / "export"
    written = write_export(form, original, files, gguf_type=options.gguf_type)
    begin(1)
    request = PassportRequest(str(files), str(original), str(checkpoint.id), digests(files), form, written.dtype)
    (folder / "request.json").write_text(json.dumps(asdict(request)))
    # a separate process, so that nothing in memory can replace the files
    must_run_child(PASSPORT, [str(folder / "request.json")], run_id=None)
    passport = json.loads((folder / "passport.json").read_text())
    if not passport["passed"]:
        _update(export_id, passport=passport)
        raise ExportRefused(f"The passport was refused: {passport['reason']}.")
    begin(2)
    facts = read_facts(checkpoint.id)
    description = ExportDescription(form, written, facts.manifest.proctor.agent.system, options.licence)
    card = write_card(facts, description, passport, transfer)
    (files / "README.md").write_text(card)
    (files / "passport.json").write_text(json.dumps(passport, indent=2))
    if transfer is not None:
        (files / TRANSFER).write_text(transfer.model_dump_json(indent=2))
    shutil.copyfile(inference.__file__, files / SCRIPT)
    pack(files, folder / "export.zip", write_manifest(files, checkpoint, description))
    artifact = f"exports/{export_id}.zip"
    put_file(folder / "export.zip", artifact)
    if options.is_stored:
        stored = f"exports/{export_id}"
        options = options.model_copy(update={"stored": stored})
        put_folder(files, stored)
    passport["sizes"] = {path.name: path.stat().st_size for path in sorted(files.iterdir())}
    return {"card": card, "passport": passport, "artifact": artifact, "options": options.model_dump(mode="json")}


def pack(folder: Path, target: Path, files: dict[str, str]) -> None:
    """Zip the folder, then read the zip back: its files must be the verified ones."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.iterdir()):
            entry = zipfile.ZipInfo(path.name, _ZIP_DATE)
            with archive.open(entry, "w", force_zip64=True) as packed, path.open("rb") as file:
                shutil.copyfileobj(file, packed, 1 << 20)
    with tempfile.TemporaryDirectory(dir=target.parent) as unpacked, zipfile.ZipFile(target) as archive:
        archive.extractall(unpacked)
        changed = [name for name, digest in files.items() if digest_of(Path(unpacked) / name) != digest]
    if changed:
        raise ExportRefused(f"the zip differs from the verified files: {', '.join(changed)}")


def _update(export_id: uuid.UUID, **fields: object) -> None:
    with transaction() as session:
        row = session.get_one(Export, export_id)
        for name, value in fields.items():
            setattr(row, name, value)
        announce(session, f"export:{export_id}")


def main() -> int:
    export_id = uuid.UUID(sys.argv[1])
    configure_logging("export")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(export_id=str(export_id))
    logger.info("export ended", status=export(export_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
