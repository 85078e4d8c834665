"""What is sent: a notice as JSON for a webhook, and as a plain e-mail."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid
from typing import Any
from urllib.parse import urlsplit

from backend.domain.notifications.notices import NoticeKind, examples_of
from backend.notifications.tables import Notice
from backend.settings import get_settings

MOST_EVIDENCE_CHARACTERS = 50_000
_SUBJECT_CHARACTERS = 180


@dataclass(frozen=True, slots=True)
class Message:
    """A notice, detached from its row."""

    delivery_id: str
    """The same at each attempt, so that a receiver can tell a repetition."""
    notice_id: str
    kind: NoticeKind
    title: str
    text: str
    url: str
    """Absolute, on this installation's public address."""
    run: dict[str, str] | None
    rollouts: list[dict[str, str]]
    """Examples that the evidence names."""
    evidence: dict[str, Any]
    created_at: datetime

    def as_json(self) -> bytes:
        body = {
            "id": self.notice_id,
            "kind": str(self.kind),
            "title": self.title,
            "text": self.text,
            "url": self.url,
            "run": self.run,
            "rollouts": self.rollouts,
            "evidence": self.evidence,
            "created_at": self.created_at.isoformat(),
            "installation": public_url(),
        }
        return json.dumps(body, ensure_ascii=False, default=str).encode()

    def as_mail(self, sender: str, recipients: list[str]) -> EmailMessage:
        """Raises ValueError for an address or a subject that would break a header."""
        mail = EmailMessage(policy=SMTP)
        mail["Subject"] = f"[Proctor] {one_line(self.title)}"[:_SUBJECT_CHARACTERS]
        mail["From"] = sender
        mail["To"] = ", ".join(recipients)
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Message-ID"] = make_msgid(self.delivery_id, domain=urlsplit(public_url()).hostname or "localhost")
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(self._words())
        return mail

    def _words(self) -> str:
        parts = [self.title, self.text, self.url, *(f"For example: {each['url']}" for each in self.rollouts)]
        if self.evidence:
            parts.append("Evidence:\n" + json.dumps(self.evidence, indent=2, ensure_ascii=False, default=str))
        return "\n\n".join(filter(None, parts)) + "\n"


def message_of(notice: Notice, delivery_id: object) -> Message:
    """Its run is loaded."""
    return Message(
        delivery_id=str(delivery_id),
        notice_id=str(notice.id),
        kind=notice.kind,
        title=notice.title,
        text=notice.text,
        url=absolute(notice.path),
        run=_run(notice),
        rollouts=[{"id": str(id), "url": absolute(f"/rollouts/{id}")} for id in examples_of(notice.evidence)],
        evidence=_bounded(notice.evidence),
        created_at=notice.created_at,
    )


def absolute(path: str) -> str:
    return public_url() + path


def public_url() -> str:
    return get_settings().public_url.rstrip("/")


def one_line(text: str) -> str:
    return " ".join(text.split())


def _run(notice: Notice) -> dict[str, str] | None:
    run = notice.run
    return None if run is None else {"id": str(run.id), "name": run.name, "url": absolute(f"/runs/{run.id}")}


def _bounded(evidence: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(evidence, default=str))
    if size <= MOST_EVIDENCE_CHARACTERS:
        return evidence
    return {"left_out": f"{size:,} characters; the page has all of it"}
