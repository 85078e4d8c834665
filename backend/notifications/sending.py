"""Send a notice to a webhook or by SMTP, under the outgoing policy.

Webhook headers follow Standard Webhooks, so that receivers can use its libraries. Redirects are not followed.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import smtplib
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from backend.core.outgoing import AddressRefused, connect
from backend.core.outgoing.client import Redirected, open_session, reason_of, refusal_in
from backend.core.outgoing.errors import describe_body
from backend.domain.notifications.chat import ChatNotice, WebhookFormat, discord_payload, slack_payload
from backend.domain.notifications.notices import NoticeKind, Security, examples_of
from backend.notifications.outbox import absolute_url
from backend.notifications.tables import Notice

TIMEOUT_SECONDS = 15.0
"""For a whole webhook request, and for each reply of a mail server."""
MAX_EVIDENCE_CHARACTERS = 50_000
_SMTP_CODES = {
    421: "service not available",
    450: "mailbox busy",
    451: "local error on the server",
    452: "no storage left on the server",
    454: "temporary authentication failure",
    530: "authentication required",
    534: "another authentication method required",
    535: "user name or password refused",
    550: "no such mailbox, or access denied",
    551: "user not local",
    552: "mail too large",
    553: "mailbox name not allowed",
    554: "transaction failed",
}
"""RFC 5321 and RFC 4954, in our own words."""


class DeliveryFailed(Exception):
    """A notice was not delivered. The message explains why. It is retried unless `is_final`."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Message:
    """A notice, detached from its row."""

    delivery_id: str
    """The same at each attempt, so that a receiver can recognize repetitions."""
    notice_id: str
    kind: NoticeKind
    title: str
    text: str
    url: str
    """Absolute, at this installation's public address."""
    run: dict[str, str] | None
    rollouts: list[dict[str, str]]
    """Examples that the evidence names."""
    evidence: dict[str, Any]
    created_at: datetime


def message_of(notice: Notice, delivery_id: object) -> Message:
    """Build the message of a notice whose run is loaded."""
    run, evidence = notice.run, notice.evidence
    size = len(json.dumps(evidence, default=str))
    if size > MAX_EVIDENCE_CHARACTERS:
        evidence = {"left_out": f"{size:,} characters; see the page for the whole evidence"}
    return Message(
        delivery_id=str(delivery_id),
        notice_id=str(notice.id),
        kind=notice.kind,
        title=notice.title,
        text=notice.text,
        url=absolute_url(notice.path),
        run={"id": str(run.id), "name": run.name, "url": absolute_url(f"/runs/{run.id}")} if run else None,
        rollouts=[{"id": str(id), "url": absolute_url(f"/rollouts/{id}")} for id in examples_of(notice.evidence)],
        evidence=evidence,
        created_at=notice.created_at,
    )


def send_webhook(configuration: Mapping[str, Any], message: Message, secret: str | None) -> None:
    """Post a message to a webhook in the format of its receiver. Raises DeliveryFailed."""
    payload = payload_of(message, WebhookFormat(configuration.get("format", WebhookFormat.JSON)))
    try:
        asyncio.run(
            asyncio.wait_for(_post(configuration["url"], message.delivery_id, payload, secret), TIMEOUT_SECONDS)
        )
    except TimeoutError as error:
        raise DeliveryFailed(f"The server did not answer within {TIMEOUT_SECONDS:g} seconds.") from error
    except Redirected as error:
        reason = f"{error}. Redirects are not followed; enter the final address."
        raise DeliveryFailed(f"The server answered {reason}", is_final=True) from error
    except aiohttp.InvalidURL as error:
        raise DeliveryFailed("The address is not valid.", is_final=True) from error
    except (aiohttp.ClientError, OSError) as error:
        if refusal := refusal_in(error):
            raise DeliveryFailed(str(refusal)) from error
        raise DeliveryFailed(f"The server could not be reached: {reason_of(error)}.") from error


def payload_of(message: Message, format: WebhookFormat) -> Mapping[str, object]:
    """Return what a webhook of this format gets."""
    if format is WebhookFormat.JSON:
        fields = asdict(message) | {"id": message.notice_id, "created_at": message.created_at.isoformat()}
        del fields["delivery_id"], fields["notice_id"]
        return fields | {"installation": absolute_url("")}
    notice = ChatNotice(
        title=message.title,
        text=message.text,
        label=str(message.kind).replace("_", " ").capitalize(),
        url=message.url,
        created_at=message.created_at,
        run=(message.run["name"], message.run["url"]) if message.run else None,
        examples=[each["url"] for each in message.rollouts],
    )
    return slack_payload(notice) if format is WebhookFormat.SLACK else discord_payload(notice)


async def _post(url: str, delivery_id: str, payload: Mapping[str, object], secret: str | None) -> None:
    body, timestamp = json.dumps(payload, ensure_ascii=False, default=str).encode(), int(time.time())
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "User-Agent": "Proctor",
        "Webhook-Id": delivery_id,
        "Webhook-Timestamp": str(timestamp),
    }
    if secret:  # the signature is the base64 HMAC-SHA256 of `id.timestamp.body`; a secret `whsec_…` is base64
        key = secret.encode()
        if secret.startswith("whsec_"):
            with suppress(ValueError):
                key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        signed = f"{delivery_id}.{timestamp}.".encode() + body
        signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        headers["Webhook-Signature"] = f"v1,{signature}"
    async with (
        open_session(seconds=TIMEOUT_SECONDS) as session,
        session.post(url, data=body, headers=headers) as response,
    ):
        status = response.status
        if 200 <= status < 300:
            return
        # the body is not read: any service could have sent it
        shown = describe_body(response.headers.get("Content-Type"), response.content_length or 0)
        is_final = 400 <= status < 500 and status not in {408, 425, 429}
        raise DeliveryFailed(f"The server answered HTTP {status} ({shown}).", is_final=is_final)


class _Smtp(smtplib.SMTP):
    """Connects under the outgoing policy; the certificate is checked against the host's own name."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return connect(host, port, timeout)


class _SmtpOverTls(smtplib.SMTP_SSL, _Smtp):
    """SMTP_SSL gets its socket from the next class."""


def send_mail(configuration: Mapping[str, Any], message: Message, password: str | None) -> None:
    """Send a message by email. Raises DeliveryFailed."""
    host, port, recipients = configuration["host"], configuration["port"], configuration["recipients"]
    try:
        mail = EmailMessage(policy=SMTP)
        mail["Subject"] = f"[Proctor] {' '.join(message.title.split())}"[:180]
        mail["From"] = configuration["sender"]
        mail["To"] = ", ".join(recipients)
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Message-ID"] = make_msgid(message.delivery_id, domain=urlsplit(absolute_url("")).hostname or "localhost")
        mail["Auto-Submitted"] = "auto-generated"
        parts = [
            message.title,
            message.text,
            message.url,
            *(f"For example: {each['url']}" for each in message.rollouts),
        ]
        if message.evidence:
            parts.append("Evidence:\n" + json.dumps(message.evidence, indent=2, ensure_ascii=False, default=str))
        mail.set_content("\n\n".join(filter(None, parts)) + "\n")
        with _open_smtp(host, port, Security(configuration["security"])) as server:
            if configuration["user"]:
                server.login(configuration["user"], password or "")
            refused = server.send_message(mail, configuration["sender"], recipients)
    except AddressRefused as error:
        raise DeliveryFailed(str(error)) from error
    except smtplib.SMTPException as error:
        raise _smtp_failure(error) from error
    except (OSError, ValueError) as error:
        raise DeliveryFailed(f"{host}: {error or type(error).__name__}.") from error
    if refused:
        raise DeliveryFailed(
            f"The server refused {', '.join(refused)}. The other recipients got the mail.", is_final=True
        )


def _open_smtp(host: str, port: int, security: Security) -> smtplib.SMTP:
    if security is Security.TLS:
        return _SmtpOverTls(host, port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context())
    server = _Smtp(host, port, timeout=TIMEOUT_SECONDS)
    if security is Security.STARTTLS:
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def _smtp_failure(error: smtplib.SMTPException) -> DeliveryFailed:
    """Describe it by reply codes only: any service at this address may have sent the text. Codes from 500 are final."""
    match error:
        case smtplib.SMTPRecipientsRefused():
            refused = error.recipients.items()
            answers = "; ".join(f"{address}: {_reply_code(code, text)}" for address, (code, text) in refused)
            is_final = all(code >= 500 for _, (code, _) in refused)
            return DeliveryFailed(f"The server refused the recipients: {answers}.", is_final=is_final)
        case smtplib.SMTPResponseException():
            answer = _reply_code(error.smtp_code, error.smtp_error)
            return DeliveryFailed(f"The server answered {answer}.", is_final=error.smtp_code >= 500)
        case smtplib.SMTPNotSupportedError():
            return DeliveryFailed(
                "The server does not support what this destination needs: STARTTLS or authentication.", is_final=True
            )
        case smtplib.SMTPServerDisconnected():
            return DeliveryFailed("The server closed the connection.")
    return DeliveryFailed(f"{type(error).__name__}.")


def _reply_code(code: int, reply: bytes | str) -> str:
    """Return the code, the enhanced code if the reply begins with one (RFC 3463), and its meaning: `550 5.1.1 (…)`."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    enhanced = re.match(r"[245]\.\d{1,3}\.\d{1,3}(?=\s|$)", text)
    name = _SMTP_CODES.get(code, "")
    return " ".join(part for part in (str(code), enhanced[0] if enhanced else "", name and f"({name})") if part)
