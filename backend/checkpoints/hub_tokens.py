"""What a worker is told of an upload to the Hub: its token, which nobody else can read, and the commit's message."""

import base64

from backend.checkpoints.tables import Export
from backend.domain.checkpoints.exports import ExportOptions
from backend.policies.secrets import seal, unseal


def sealed_token(token: str, repository: str) -> str:
    return base64.b64encode(seal(token, _bound_to(repository))).decode()


def token_of(options: ExportOptions) -> str | None:
    """The upload's own token in the clear, for the worker that sends; None: the worker's."""
    if options.hub is None or options.hub_secret is None:
        return None
    return unseal(base64.b64decode(options.hub_secret), _bound_to(options.hub.repository))


def message_of(export: Export) -> str:
    return f"Proctor export {export.id}: {export.form}, proven by its passport"


def _bound_to(repository: str) -> str:
    """A token copied to another repository's upload cannot be opened there."""
    return f"hub:{repository}"
