"""What people and scripts send about notices and where they go."""

from __future__ import annotations

import re
from email.errors import HeaderParseError
from email.headerregistry import Address
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints

from backend.domain.notifications.notices import KIND_WORDS, DestinationKind, NoticeKind, Security
from backend.errors import InvalidInput

MOST_RECIPIENTS = 20
_HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _mail_address(value: str) -> str:
    """One plain address: nothing in it can end a header or begin another recipient."""
    text = value.strip()
    try:
        Address(addr_spec=text)
    except (HeaderParseError, ValueError, IndexError) as error:
        raise ValueError(f"{text[:100]!r} is not an e-mail address") from error
    local, _, host = text.rpartition("@")
    if not local or not _HOST.match(host) or len(text) > 254 or not text.isascii() or set(text) & set(' ,;<>"\r\n'):
        raise ValueError(f"{text[:100]!r} is not an e-mail address")
    return text


def _host(value: str) -> str:
    text = value.strip()
    if text and not _HOST.match(text):
        raise ValueError("This is not the name of a host")
    return text


def _printable(value: str) -> str:
    if _CONTROL.search(value):
        raise ValueError("Leave out line breaks and control characters")
    return value


def _chosen_kind(value: NoticeKind) -> NoticeKind:
    if value not in KIND_WORDS:
        raise ValueError("No destination chooses this kind")
    return value


def _addresses(value: Any) -> Any:
    """A form sends them in one text field: a line or a comma between two."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return value
    return [each for text in texts for each in re.split(r"[\s,;]+", text) if each]


MailAddress = Annotated[str, AfterValidator(_mail_address)]


class DestinationRequest(BaseModel):
    """A destination to add, or what one shall be from now on."""

    model_config = ConfigDict(extra="ignore")

    kind: DestinationKind
    name: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100), AfterValidator(_printable)
    ]
    kinds: list[Annotated[NoticeKind, AfterValidator(_chosen_kind)]] = Field(default_factory=list)
    """Which notices; empty: all."""
    is_enabled: bool = True
    url: Annotated[str, Field(max_length=2000)] = ""
    """webhook: where it is posted to."""
    host: Annotated[str, AfterValidator(_host)] = ""
    """email: the SMTP server."""
    port: Annotated[int | None, Field(ge=1, le=65535)] = None
    """email; left out: 587, of TLS from the first byte 465, in the clear 25."""
    security: Security = Security.STARTTLS
    user: Annotated[str, Field(max_length=200), AfterValidator(_printable)] = ""
    """email; empty: nobody signs in."""
    sender: Annotated[MailAddress | None, Field()] = None
    recipients: Annotated[list[MailAddress], BeforeValidator(_addresses), Field(max_length=MOST_RECIPIENTS)] = Field(
        default_factory=list
    )
    secret: SecretStr = SecretStr("")
    """webhook: signs each request. email: the password. Stored encrypted, bound to the address, never shown. Empty in a
    change: the stored one stays, unless the address changes."""
    forget_secret: bool = False
    """In a change: the stored secret is forgotten."""

    def configuration(self) -> dict[str, Any]:
        """Raises InvalidInput for what is missing or does not fit together."""
        return self._webhook() if self.kind is DestinationKind.WEBHOOK else self._email()

    def _webhook(self) -> dict[str, Any]:
        return {"url": checked_url(self.url)}

    def _email(self) -> dict[str, Any]:
        wrong = {name: "Needed." for name in ("host", "sender", "recipients") if not getattr(self, name)}
        if self.security is Security.NONE and (self.user or self.secret.get_secret_value()):
            wrong["security"] = "A password is not sent in the clear: choose STARTTLS or TLS."
        if wrong:
            raise InvalidInput(fields=wrong)
        return {
            "host": self.host,
            "port": self.port or _USUAL_PORTS[self.security],
            "security": str(self.security),
            "user": self.user.strip(),
            "sender": self.sender,
            "recipients": list(dict.fromkeys(self.recipients)),
        }


_USUAL_PORTS = {Security.STARTTLS: 587, Security.TLS: 465, Security.NONE: 25}


def checked_url(text: str) -> str:
    """Raises InvalidInput. Whether the host may be reached is asked when something is sent."""
    url = text.strip()
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidInput(fields={"url": f"This is not an address: {error}."}) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or re.search(r"\s", url) or not url.isascii():
        raise InvalidInput(fields={"url": "An address begins with http:// or https:// and has no blanks."})
    if parts.username or parts.password or parts.fragment:
        raise InvalidInput(fields={"url": "Leave out names, passwords and everything after `#`."})
    return url
