"""Send a package to the Hugging Face Hub as a Space. A dry run lists everything that would be sent."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from backend.cli import working_copy
from backend.cli.output import BAD_RESULT, fail
from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.environments.export import for_space

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True, slots=True)
class Shipment:
    """The files of a Space and its address."""

    repository: str
    files: dict[str, str]
    added: list[str]
    """Not in the folder, or not in this form."""
    is_private: bool

    @property
    def bytes(self) -> int:
        return sum(len(text.encode()) for text in self.files.values())


def prepare(folder: Path, repository: str, *, is_private: bool) -> Shipment:
    """Nothing is sent yet. Ends the command when the package or the name cannot be used."""
    if not _REPOSITORY.fullmatch(repository):
        fail(f"{repository!r} is no Space: write owner/name")
    files = working_copy.read_folder(folder)
    try:
        manifest = read_manifest(files[MANIFEST_PATH])
    except ManifestInvalid as error:
        fail(f"{MANIFEST_PATH}: {error}")
    whole = for_space(files, manifest)
    return Shipment(repository, whole, sorted(path for path in whole if whole[path] != files.get(path)), is_private)


def send(shipment: Shipment, message: str) -> str:
    """Create the Space where it is not there yet and upload one commit; its address."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
    except ImportError:
        fail("this needs huggingface_hub: pip install huggingface_hub")
    from httpx2 import HTTPError  # what huggingface_hub speaks through

    api = HfApi()
    try:
        with tempfile.TemporaryDirectory(prefix="proctor-space-") as staged:
            working_copy.write_folder(Path(staged), shipment.files)
            space = api.create_repo(
                shipment.repository, repo_type="space", space_sdk="docker", private=shipment.is_private, exist_ok=True
            )
            api.upload_folder(
                folder_path=staged, repo_id=shipment.repository, repo_type="space", commit_message=message
            )
    except LocalTokenNotFoundError:
        fail("the Hub wants a token: set HF_TOKEN or run `hf auth login`")
    except (HfHubHTTPError, HTTPError, OSError) as error:
        fail(f"the Hub refused or cannot be reached: {error}", BAD_RESULT)
    return str(space)
