"""Sending an export to the Hugging Face Hub from the command line: Proctor sends, with this side's token."""

from typing import Any

from backend.cli.output import BAD_RESULT, fail, say, write_table
from backend.cli.watching import look_while
from proctor import Client


def dry_run(client: Client, export_id: str, repository: str, *, is_private: bool, quiet: bool) -> dict[str, Any]:
    """What would be sent; nothing is."""
    asked = {"repository": repository, "is_private": is_private, "dry_run": True}
    plan: dict[str, Any] = client.post(f"/exports/{export_id}/hub", asked)
    if not quiet:
        write_table(("file", "bytes"), [(name, f"{size:,}") for name, size in plan["files"].items()], empty="no files")
        say(f"Nothing was sent. To {repository}: {len(plan['files'])} files, {plan['bytes'] / 1e6:.1f} MB, one commit.")
    return plan


def upload(client: Client, export_id: str, repository: str, *, is_private: bool, quiet: bool) -> dict[str, Any]:
    """Ask for the upload and wait until it is over. Ends with 1 when the Hub refuses."""
    asked = {"repository": repository, "is_private": is_private, "token": own_token()}
    answer: dict[str, Any] = client.post(f"/exports/{export_id}/hub", asked)
    state = look_while(
        lambda upload: upload["status"] not in {"completed", "failed"},
        answer["upload"],
        lambda: client.get(f"/exports/{export_id}")["upload"],
    )
    if state["status"] == "failed":
        fail(state["reason"] or "the upload failed", BAD_RESULT)
    if not quiet:
        say(str(state["url"]))
    return state


def own_token() -> str | None:
    """HF_TOKEN, or what `hf auth login` left here; None leaves it to the worker."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return None
    token: str | None = get_token()
    return token
