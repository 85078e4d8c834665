"""Finding text in conversations."""

import json

from sqlalchemy import ColumnElement, Text, cast

from backend.db.models import Rollout


def says(text: str) -> ColumnElement[bool]:
    """Somewhere in the conversation, as JSON writes it: a line break in the text is \\n in the stored message."""
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    return cast(Rollout.messages, Text).icontains(written, autoescape=True)
