"""Requests and responses of notices, destinations and deliveries."""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from email.errors import HeaderParseError
from email.headerregistry import Address
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints

from backend.domain.notifications.chat import WebhookFormat
from backend.domain.notifications.notices import (
    KIND_DESCRIPTIONS,
    PERSONAL_KINDS,
    DeliveryStatus,
    DestinationKind,
    EmailFrequency,
    NoticeKind,
    Security,
)
from backend.errors import InvalidInput
from backend.notifications.tables import NoticeDelivery
from backend.operations.schemas import Cli, ListRequest, Progress, Request, Response

MAX_RECIPIENTS = 20
SETTINGS_PATH = "/settings/notifications"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?"
_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
_FORMAT = "`json` for programs, or the message format of `slack` or `discord`. Default: by the address."
_DEFAULT_PORTS = {Security.STARTTLS: 587, Security.TLS: 465, Security.NONE: 25}


def _mail_address(value: str) -> str:
    """Accept one plain address that cannot end a header or start another recipient."""
    text = value.strip()
    try:
        Address(addr_spec=text)
    except (HeaderParseError, ValueError, IndexError) as error:
        raise ValueError(f"{text[:100]!r} is not an email address") from error
    local, _, host = text.rpartition("@")
    if (
        not local
        or not re.fullmatch(_HOST, host)
        or len(text) > 254
        or not text.isascii()
        or set(text) & set(' ,;<>"\r\n')
    ):
        raise ValueError(f"{text[:100]!r} is not an email address")
    return text


def _selectable_kind(value: NoticeKind) -> NoticeKind:
    if value not in KIND_DESCRIPTIONS:
        raise ValueError("Destinations cannot select this kind")
    return value


def _split_addresses(value: object) -> object:
    """Split the text field of a form, where lines or commas separate the addresses."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return value
    return [each for text in texts for each in re.split(r"[\s,;]+", text) if each]


MailAddress = Annotated[str, AfterValidator(_mail_address)]


class ListNotices(ListRequest):
    command_limit = 20

    unread: bool = Field(False, description="Only notices that you have not read.")


class MarkRead(Request):
    notice: Annotated[uuid.UUID | None, Cli(argument=True)] = Field(
        None, description="Id of a notice. Default: all notices."
    )


class ListDeliveries(ListRequest):
    command_limit = 20

    destination: uuid.UUID | None = Field(None, description="Id of a destination. Default: all destinations.")


class DestinationSettings(Request):
    """Settings of every kind of destination."""

    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=_PRINTABLE),
        Field(description="Name of a new destination, or of one to change."),
        Cli(argument=True),
    ]
    kinds: Annotated[list[Annotated[NoticeKind, AfterValidator(_selectable_kind)]], Cli(option="--kind")] = Field(
        default_factory=list, description="Kinds of notices to send. Repeatable. Default: all."
    )
    is_enabled: Annotated[bool, Cli(option="--on/--off")] = Field(True, description="Whether anything is sent.")
    secret: Annotated[SecretStr, Cli(envvar="PROCTOR_NOTIFICATION_SECRET")] = Field(
        SecretStr(""),
        description="Signing secret of a webhook or password of a mail server. Stored encrypted and never shown. "
        "Default when changing a destination: the stored one, unless the address changes.",
    )


class WebhookRequest(DestinationSettings):
    url: Annotated[str, Cli(argument=True)] = Field(
        max_length=2000, description="Address to which notices are posted as JSON."
    )
    format: WebhookFormat | None = Field(None, description=_FORMAT)


class EmailRequest(DestinationSettings):
    host: Annotated[
        str,
        StringConstraints(strip_whitespace=True, pattern=f"^({_HOST})?$"),
        Field(description="SMTP server."),
        Cli(argument=True),
    ] = ""
    sender: Annotated[MailAddress | None, Cli(option="--from")] = Field(None, description="Address of the sender.")
    recipients: Annotated[list[MailAddress], BeforeValidator(_split_addresses), Cli(option="--to")] = Field(
        default_factory=list, max_length=MAX_RECIPIENTS, description="Address of a recipient. Repeatable, at most 20."
    )
    port: int | None = Field(
        None, ge=1, le=65535, description="Port of the server. Default: 587, 465 with tls, 25 with none."
    )
    security: Security = Field(Security.STARTTLS, description="How the connection is encrypted.")
    user: str = Field("", max_length=200, pattern=_PRINTABLE, description="User name. Default: no authentication.")


class DestinationRequest(EmailRequest):
    """All settings of a destination of either kind."""

    kind: DestinationKind
    url: str = Field("", max_length=2000, description="Address of a webhook.")
    format: Annotated[WebhookFormat | None, BeforeValidator(lambda value: value or None)] = Field(
        None, description=_FORMAT
    )
    forget_secret: bool = Field(False, description="Delete the stored secret.")

    def configuration(self) -> dict[str, object]:
        """Return the settings to store. Raises InvalidInput if some are missing or contradict each other."""
        if self.kind is DestinationKind.WEBHOOK:
            url = checked_url(self.url)
            return {"url": url, "format": str(self.format or WebhookFormat.of_address(url))}
        wrong = {name: "Required." for name in ("host", "sender", "recipients") if not getattr(self, name)}
        if self.security is Security.NONE and (self.user or self.secret.get_secret_value()):
            wrong["security"] = "A password needs an encrypted connection: choose STARTTLS or TLS."
        if wrong:
            raise InvalidInput(fields=wrong)
        return {
            "host": self.host,
            "port": self.port or _DEFAULT_PORTS[self.security],
            "security": str(self.security),
            "user": self.user.strip(),
            "sender": self.sender,
            "recipients": list(dict.fromkeys(self.recipients)),
        }


def checked_url(text: str) -> str:
    """Return a well-formed http(s) address. Raises InvalidInput. The host is checked when something is sent."""
    url = text.strip()
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidInput(fields={"url": f"This is not an address: {error}."}) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"\s", url) or not url.isascii():
        raise InvalidInput(fields={"url": "Enter an address that starts with http:// or https:// and has no spaces."})
    if parts.username or parts.password or parts.fragment:
        raise InvalidInput(fields={"url": "Remove user names, passwords and everything after `#`."})
    return url


class NoticeResponse(Response):
    table_columns = ("created_at", "kind", "title", "is_read", "url")
    table_empty = "No notices."

    id: uuid.UUID
    kind: NoticeKind
    title: str
    text: str
    url: str
    run_id: uuid.UUID | None
    evidence: dict[str, object]
    created_at: datetime
    is_read: bool
    """Whether you have read it."""


def _personal_kind(value: NoticeKind) -> NoticeKind:
    if value not in PERSONAL_KINDS:
        raise ValueError("This kind cannot be selected")
    return value


PersonalKinds = list[Annotated[NoticeKind, AfterValidator(_personal_kind)]]


class PreferencesRequest(Request):
    muted: Annotated[PersonalKinds, Cli(option="--mute")] = Field(
        default_factory=list,
        max_length=50,
        description="Kinds that are not shown in Proctor. Repeatable. Default: none.",
    )
    email: EmailFrequency = Field(
        EmailFrequency.NEVER, description="When notices are sent to your email address, through the mail server."
    )
    email_kinds: Annotated[PersonalKinds, Cli(option="--kind")] = Field(
        default_factory=list, max_length=50, description="Kinds to send by email. Repeatable. Default: all."
    )


class PreferencesResponse(Response):
    muted: list[NoticeKind]
    email: EmailFrequency
    email_kinds: list[NoticeKind]
    """Empty: all."""
    has_mail_server: bool
    """Whether an administrator added an email destination, through which messages are sent."""


class UnreadResponse(Response):
    unread: int
    """Number of notices that you have not read."""


class DestinationResponse(Response):
    table_columns = ("name", "kind", "kinds", "is_enabled", "has_secret", "address")
    table_empty = "Nothing is sent anywhere."

    id: uuid.UUID
    name: str
    kind: DestinationKind
    kinds: list[str]
    """Kinds of notices sent there. Empty: all."""
    is_enabled: bool
    configuration: dict[str, object]
    has_secret: bool
    address: str
    """The webhook's URL, or recipients and mail server."""
    created_at: datetime


class DeliveryResponse(Progress):
    """A notice on its way to a destination. It is finished after the first attempt."""

    table_columns = ("created_at", "destination", "title", "status", "attempts", "error", "id")
    table_empty = "Nothing has been sent."

    id: uuid.UUID
    notice_id: uuid.UUID
    kind: NoticeKind
    title: str
    destination_id: uuid.UUID
    destination: str
    status: DeliveryStatus
    attempts: int
    next_at: datetime | None
    """Latest time of the next attempt. Null: there will be none."""
    error: str | None
    created_at: datetime
    delivered_at: datetime | None

    @classmethod
    def of_delivery(cls, delivery: NoticeDelivery) -> Self:
        is_waiting = delivery.status is DeliveryStatus.WAITING
        return cls.from_row(
            delivery,
            kind=delivery.notice.kind,
            title=delivery.notice.title,
            destination=delivery.destination.name,
            next_at=delivery.next_at if is_waiting else None,
            is_finished=not is_waiting or delivery.attempts > 0,
            is_successful=delivery.status is DeliveryStatus.DELIVERED,
            done=int(delivery.status is DeliveryStatus.DELIVERED),
            total=1,
            message=delivery.error or f"sending to {delivery.destination.name}",
        )
