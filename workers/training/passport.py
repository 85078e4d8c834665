"""The passport: in a process of its own, an export's files are loaded again, compared and examined again.

`python -m workers.training.passport <request.json>` writes `passport.json` beside the request.
"""

import json
import sys
import uuid
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.statistics import paired_difference
from backend.domain.vocabulary import ExportForm
from workers.models.adapter import record_of
from workers.models.load import ModelUnusable, load_folder
from workers.storage.digests import digest_of
from workers.training.assignment import Assignment, read_assignment
from workers.training.exporting.heldout import Examined, examined, play, rewards_of
from workers.training.exporting.proof import prove_merge
from workers.training.exporting.reading import read_export
from workers.training.weights import likeness, random_probes, tolerance_of

REWARD_TOLERANCE = 0.02
"""Mean held-out reward may differ by this much, or by less than the paired interval can tell from 0."""


_MERGED = {ExportForm.MERGED, ExportForm.MERGED_DEQUANTISED}
_HINT = ". The form merged_dequantised keeps the base as it was trained on"


@dataclass(frozen=True, slots=True)
class PassportRequest:
    """What is to be proven."""

    export: str
    """Folder of the exported files."""
    original: str
    """Folder of the checkpoint's files."""
    checkpoint_id: str
    files: dict[str, str]
    """SHA-256 of each exported file, by name."""
    form: ExportForm = ExportForm.FULL
    dtype: str = "float32"
    """That the files were written in."""


@dataclass(slots=True)
class Passport:
    """What was proven."""

    passed: bool = False
    reason: str | None = None
    """Why it was not."""
    files: dict[str, str] = field(default_factory=dict)
    likeness: dict[str, Any] = field(default_factory=dict)
    """How far its predictions are from the trained policy's, and what was allowed."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Of a merged export: how far each weight is from the base's plus the adapter's."""
    heldout: dict[str, Any] = field(default_factory=dict)
    """{before, after, difference, tasks}: the checkpoint's examination and that of the reloaded export."""
    issued_at: str = ""
    versions: dict[str, str] = field(default_factory=dict)


class NotProven(Exception):
    """The exported files are not the checkpoint."""


def issue(request: PassportRequest) -> Passport:
    """Prove what can be proven; a failure is a passport that says why."""
    passport = Passport(files=request.files, issued_at=datetime.now(UTC).isoformat(), versions=_versions())
    try:
        _prove(request, passport)
    except (NotProven, ModelUnusable) as error:
        passport.reason = str(error)
    else:
        passport.passed = True
    return passport


def _prove(request: PassportRequest, passport: Passport) -> None:
    export, original = Path(request.export), Path(request.original)
    if changed := [name for name, digest in request.files.items() if digest_of(export / name) != digest]:
        raise NotProven(f"files changed after they were written: {', '.join(changed)}")
    form = ExportForm(request.form)
    exported, tokenizer = read_export(export, form, original)
    checkpoint, known_tokenizer = load_folder(original)
    if tokenizer.get_vocab() != known_tokenizer.get_vocab() or tokenizer.chat_template != known_tokenizer.chat_template:
        raise NotProven("the exported tokenizer is not the checkpoint's")
    if form in _MERGED:
        _prove_weights(exported, original, form, passport)
    row, assignment = _row(uuid.UUID(request.checkpoint_id))
    before = examined(assignment, row, checkpoint, known_tokenizer)
    found = likeness(exported, checkpoint, before.conversations or random_probes(len(tokenizer)))
    record = record_of(checkpoint)
    is_another_base = form in {ExportForm.MERGED, ExportForm.GGUF} and record is not None and bool(record.quantisation)
    allowed = tolerance_of(found.dtype, request.dtype, is_another_base=is_another_base)
    passport.likeness = {**found.as_json(), "allowed": asdict(allowed)}
    if problem := found.problem(allowed):
        raise NotProven(f"the reloaded model is not the checkpoint: {problem}{_HINT if is_another_base else ''}")
    passport.heldout = _examine_again(assignment, before, exported, tokenizer)


def _row(checkpoint_id: uuid.UUID) -> tuple[Checkpoint, Assignment]:
    """The checkpoint and the run that trained it."""
    with transaction() as session:
        row = session.get_one(Checkpoint, checkpoint_id)
    assert row.run_id is not None
    assignment = read_assignment(row.run_id)
    torch.set_num_threads(assignment.configuration.threads)
    return row, assignment


def _prove_weights(exported: Any, original: Path, form: ExportForm, passport: Passport) -> None:
    found = prove_merge(exported, original, is_rounded=form is ExportForm.MERGED_DEQUANTISED)
    passport.weights = found.as_json()
    if problem := found.problem():
        raise NotProven(f"the adapter was not added rightly: {problem}")


def _examine_again(assignment: Assignment, before: Examined, model: Any, tokenizer: Any) -> dict[str, Any]:
    """The checkpoint's examination once more, by the reloaded model: same tasks, same seeds."""
    rollouts, examination = play(assignment, model, tokenizer, at=before.at)
    rewards = rewards_of(rollouts)
    result = {"tasks": len(rewards), "before": before.figures, "after": examination.as_json(), "difference": None}
    both = sorted(before.rewards.keys() & rewards.keys())
    difference = paired_difference([before.rewards[task] for task in both], [rewards[task] for task in both])
    if difference is None:
        return result
    result["difference"] = asdict(difference)
    if abs(difference.mean) > REWARD_TOLERANCE and difference.excludes_zero:
        raise NotProven(
            f"the held-out reward of the reloaded model differs by {difference.mean:+.3f} "
            f"({difference.low:+.3f} to {difference.high:+.3f}) from the checkpoint's"
        )
    return result


def _versions() -> dict[str, str]:
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }


def main() -> int:
    configure_logging("passport")
    disable_progress_bar()
    request = Path(sys.argv[1])
    passport = issue(PassportRequest(**json.loads(request.read_text())))
    request.with_name("passport.json").write_text(json.dumps(asdict(passport), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
