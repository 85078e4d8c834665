"""One export in a process of its own: `python -m workers.training.export <export id>`.

The checkpoint is loaded afresh (never the model that trains), written anew, proven by the passport and zipped.
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

from backend.artifacts import get_folder, put_file
from backend.db.models import Checkpoint, Export
from backend.db.session import transaction
from backend.domain.vocabulary import ExportStatus
from backend.events import announce
from backend.logs import configure_logging
from backend.settings import get_settings
from workers.jobs.children import must_run_child
from workers.models.build import parameter_count
from workers.models.load import ModelUnusable, load_folder
from workers.training.card import read_facts, write_card
from workers.training.checkpoints import save_model
from workers.training.passport import PassportRequest, digest_of
from workers.training.weights import check_precision

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
        checkpoint = session.get_one(Checkpoint, session.get_one(Export, export_id).checkpoint_id)
    _tell(export_id, "reading the checkpoint", 0)
    original = get_folder(checkpoint.artifact, folder / "original")
    made = folder / "export"
    size = write_files(original, made)
    _tell(export_id, "loading the files again and examining them", 1)
    passport = _issue_passport(folder, made, original, checkpoint.id)
    if not passport["passed"]:
        raise _refusal(export_id, passport)
    _tell(export_id, "packing", 2)
    card = write_card(read_facts(checkpoint.id), passport, size)
    (made / "README.md").write_text(card)
    (made / "passport.json").write_text(json.dumps(passport, indent=2))
    manifest = write_manifest(made, checkpoint)
    packed = folder / "export.zip"
    pack(made, packed, manifest)
    key = f"exports/{export_id}.zip"
    put_file(packed, key)
    return {"artifact": key, "card": card, "passport": passport}


def write_files(original: Path, made: Path) -> int:
    """Weights, configuration, tokenizer and template, written anew from the checkpoint. Returns the parameters."""
    check_precision(original)
    model, tokenizer = load_folder(original)
    made.mkdir()
    save_model(model, tokenizer, made)
    check_precision(made)
    return parameter_count(model)


def _issue_passport(folder: Path, made: Path, original: Path, checkpoint_id: uuid.UUID) -> dict[str, Any]:
    """In a fresh process, so that nothing that is still in memory can stand in for the files."""
    request = PassportRequest(str(made), str(original), str(checkpoint_id), digests(made))
    asked = folder / "request.json"
    asked.write_text(json.dumps(asdict(request)))
    must_run_child(PASSPORT, [str(asked)], run_id=None)
    passport: dict[str, Any] = json.loads((folder / "passport.json").read_text())
    return passport


def _refusal(export_id: uuid.UUID, passport: dict[str, Any]) -> Refused:
    with transaction() as session:
        session.get_one(Export, export_id).passport = passport
    return Refused(f"The passport was refused: {passport['reason']}.")


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by name."""
    return {path.name: digest_of(path) for path in sorted(folder.iterdir())}


def write_manifest(made: Path, checkpoint: Checkpoint) -> dict[str, str]:
    """`manifest.json`: what this is and the hash of every other file. Returns the hashes."""
    files = digests(made)
    about = {
        "format": "proctor-export/1",
        "checkpoint": str(checkpoint.id),
        "run": str(checkpoint.run_id),
        "stage": checkpoint.stage,
        "step": checkpoint.step,
        "quantization": None,
        "files": files,
    }
    (made / "manifest.json").write_text(json.dumps(about, indent=2))
    return files


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
