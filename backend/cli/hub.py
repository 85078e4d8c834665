"""Upload a package to the Hugging Face Hub as a Space. A dry run lists all files that would be uploaded."""

import re
import tempfile
from pathlib import Path

from backend.cli import working_copy
from backend.cli.output import BAD_RESULT, fail, say, write_json, write_table
from backend.domain.checkpoints.exports import REPOSITORY
from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.environments.export import for_space


def push_to_hub(
    folder: Path, repository: str, message: str, *, is_private: bool, is_dry_run: bool, as_json: bool
) -> None:
    """Send a package as a Space and show its files. Ends the command if the package or the name cannot be used."""
    if not re.fullmatch(REPOSITORY, repository):
        fail(f"{repository!r} is not the name of a Space: write owner/name")
    own = working_copy.read_folder(folder)
    try:
        files = for_space(own, read_manifest(own[MANIFEST_PATH]))
    except ManifestInvalid as error:
        fail(f"{MANIFEST_PATH}: {error}")
    added = sorted(path for path in files if files[path] != own.get(path))
    sizes = {path: len(text.encode()) for path, text in sorted(files.items())}
    address = None if is_dry_run else _send(repository, files, message, is_private=is_private)
    if as_json:
        summary = {"space": repository, "private": is_private, "files": list(sizes), "added": added}
        return write_json(summary | {"bytes": sum(sizes.values()), "address": address})
    rows = [(path, f"{size:,}", "generated for the export" if path in added else "") for path, size in sizes.items()]
    write_table(("file", "bytes", ""), rows, empty="Nothing.")
    space = f"{'private ' if is_private else ''}Docker Space {repository}"
    size = f"{space}: {len(files)} files, {sum(sizes.values()):,} bytes"
    say(f"would be sent to the {size}. Nothing was sent." if is_dry_run else f"sent to the {size}: {address}")


def _send(repository: str, files: dict[str, str], message: str, *, is_private: bool) -> str:
    """Create the Space if it does not exist, upload the files in one commit, and return the Space's URL."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
    except ImportError:
        fail("this needs huggingface_hub: pip install huggingface_hub")
    from httpx2 import HTTPError  # raised by huggingface_hub

    api = HfApi()
    try:
        with tempfile.TemporaryDirectory(prefix="proctor-space-") as staged:
            working_copy.write_folder(Path(staged), files)
            space = api.create_repo(
                repository, repo_type="space", space_sdk="docker", private=is_private, exist_ok=True
            )
            api.upload_folder(folder_path=staged, repo_id=repository, repo_type="space", commit_message=message)
    except LocalTokenNotFoundError:
        fail("the Hub requires a token: set HF_TOKEN or run `hf auth login`")
    except (HfHubHTTPError, HTTPError, OSError) as error:
        fail(f"the Hub refused or cannot be reached: {error}", BAD_RESULT)
    return str(space)
