"""Where the base of an adapter lies, and whether it is still the one that the adapter was trained beside."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig

from backend.core.artifacts import get_folder
from backend.domain.training.adapter import AdapterRecord
from workers.models.read import ModelUnusable, check_weight_files

_DIGEST = "sha256:"


@dataclass(frozen=True, slots=True)
class Source:
    """What a model is read from."""

    name: str
    """A folder, or a name of the Hub."""
    revision: str | None = None
    """Of the Hub."""
    is_local: bool = True


def find_base(name: str) -> tuple[Source, str | None]:
    """The base that a person named, and what pins it: the Hub's commit, or the digest of the folder's weights."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        check_weight_files(folder)
        return Source(str(folder)), weights_digest(folder)
    try:
        configuration = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusable(f"{name} cannot be loaded: {error}") from error
    revision = getattr(configuration, "_commit_hash", None)
    return Source(name, revision, is_local=False), revision


@contextmanager
def base_of(record: AdapterRecord) -> Iterator[Source]:
    """The weights that an adapter was trained beside, for as long as they are read. Raises ModelUnusable when they are
    gone or others."""
    if record.artifact is not None:
        with tempfile.TemporaryDirectory(prefix="proctor-base-") as folder:
            yield Source(str(_unchanged(_fetched(record.artifact, Path(folder) / "weights"), record)))
    elif not (record.revision or "").startswith(_DIGEST):
        yield Source(record.base, record.revision, is_local=False)
    else:
        yield Source(str(_unchanged(Path(record.base).expanduser(), record)))


def weights_digest(folder: Path) -> str:
    """One hash of a folder's configuration and weights."""
    whole = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        with path.open("rb") as file:
            whole.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return _DIGEST + whole.hexdigest()


def _unchanged(folder: Path, record: AdapterRecord) -> Path:
    if not folder.is_dir():
        raise ModelUnusable(f"the base {record.base} of this adapter is not on this worker")
    if weights_digest(folder) != record.revision:
        raise ModelUnusable(f"the base {record.base} was changed since this adapter was trained beside it")
    return folder


def _fetched(artifact: str, target: Path) -> Path:
    try:
        return get_folder(artifact, target)
    except FileNotFoundError as error:
        raise ModelUnusable(
            "the base of this adapter, a checkpoint of ours, is gone from the artifact store"
        ) from error
