"""The token and commit message of an upload to the Hugging Face Hub. Free of the web, because a worker uploads."""

import base64

from backend.checkpoints.tables import Export
from backend.domain.checkpoints.exports import ExportOptions
from backend.policies.service import seal, unseal


def sealed_token(token: str, repository: str) -> str:
    """Encrypt a token so that it can only be opened for an upload to this repository."""
    return base64.b64encode(seal(token, f"hub:{repository}")).decode()


def token_of(options: ExportOptions) -> str | None:
    """Decrypt the token of an upload for the worker that sends it. None: use the worker's own token."""
    if options.hub is None or options.hub_secret is None:
        return None
    return unseal(base64.b64decode(options.hub_secret), f"hub:{options.hub.repository}")


def message_of(export: Export) -> str:
    return f"Proctor export {export.id}: {export.form}, verified by its passport"
