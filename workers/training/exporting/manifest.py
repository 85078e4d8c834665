"""`manifest.json` of an export: what it is, what it was made of, and the hash of every other file."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.checkpoints.tables import Checkpoint
from backend.domain.training.adapter import AdapterRecord
from backend.domain.vocabulary import ExportForm
from workers.storage.digests import digest_of
from workers.training.exporting import inference
from workers.training.exporting.forms import Written

FORMAT = "proctor-export/2"
MANIFEST, SCRIPT = "manifest.json", "inference.py"


@dataclass(frozen=True, slots=True)
class About:
    """What the manifest says beside the files."""

    form: ExportForm
    written: Written
    system: str
    """The message that the policy was trained with."""
    licence: str = ""


def write_manifest(made: Path, checkpoint: Checkpoint, about: About) -> dict[str, str]:
    """Returns the hashes of the other files."""
    files = digests(made)
    told = {
        "format": FORMAT,
        "form": str(about.form),
        "checkpoint": str(checkpoint.id),
        "run": str(checkpoint.run_id),
        "stage": checkpoint.stage,
        "step": checkpoint.step,
        "dtype": about.written.dtype,
        "parameters": about.written.parameters,
        "label": about.written.label,
        "base": _base(checkpoint.adapter),
        "licence": about.licence or None,
        "system": about.system,
        "files": files,
        "bytes": {name: (made / name).stat().st_size for name in files},
    }
    (made / MANIFEST).write_text(json.dumps(told, indent=2))
    return files


def write_script(made: Path) -> None:
    shutil.copyfile(inference.__file__, made / SCRIPT)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by name."""
    return {path.name: digest_of(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}


def _base(adapter: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Of an adapter, also of a merged one; None where all weights were trained."""
    if adapter is None:
        return None
    record = AdapterRecord.model_validate(adapter)
    return {
        "name": record.public_base,
        "revision": record.revision,
        "dtype": record.dtype,
        "quantisation": record.quantisation.model_dump() if record.quantisation else None,
        "rank": record.rank,
        "alpha": record.alpha,
        "targets": record.targets,
    }
