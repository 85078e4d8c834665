"""Sending a notice by SMTP."""

import re
import smtplib
import socket
import ssl
from typing import Any

from backend.core.outgoing import AddressRefused
from backend.core.outgoing.policy import connect
from backend.domain.notifications.notices import Security
from backend.notifications.failures import DeliveryFailed
from backend.notifications.messages import Message

TIMEOUT_SECONDS = 15.0
"""For each answer of the server."""


class _Smtp(smtplib.SMTP):
    """Connects under the outgoing policy; the host's own name stays that of the certificate."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return connect(host, port, timeout)


class _SmtpOverTls(smtplib.SMTP_SSL, _Smtp):
    """SMTP_SSL asks the class after it for the socket."""


def send(configuration: dict[str, Any], message: Message, password: str | None) -> None:
    """Raises DeliveryFailed."""
    try:
        mail = message.as_mail(configuration["sender"], configuration["recipients"])
        with _connected(configuration) as server:
            if configuration["user"]:
                server.login(configuration["user"], password or "")
            left_out = server.send_message(mail, configuration["sender"], configuration["recipients"])
    except AddressRefused as error:
        raise DeliveryFailed(str(error)) from error
    except smtplib.SMTPException as error:
        raise DeliveryFailed(_words(error), is_final=_is_final(error)) from error
    except (OSError, ValueError) as error:
        raise DeliveryFailed(f"{configuration['host']}: {error or type(error).__name__}.") from error
    if left_out:
        raise DeliveryFailed(f"The server took no mail for {', '.join(left_out)}; the others got it.", is_final=True)


def _connected(configuration: dict[str, Any]) -> smtplib.SMTP:
    host, port, security = configuration["host"], configuration["port"], Security(configuration["security"])
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


def _is_final(error: smtplib.SMTPException) -> bool:
    """A code from 500 on is the server's last word."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    return isinstance(error, smtplib.SMTPNotSupportedError)


def _words(error: smtplib.SMTPException) -> str:
    """Reply codes only: the text may be that of any service that listens at this address."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        told = "; ".join(f"{who}: {_code(code, said)}" for who, (code, said) in error.recipients.items())
        return f"The server refused the recipients: {told}."
    if isinstance(error, smtplib.SMTPResponseException):
        return f"The server answered {_code(error.smtp_code, error.smtp_error)}."
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return "The server does not offer what this destination needs: STARTTLS, or signing in."
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return "The server closed the connection."
    return f"{type(error).__name__}."


def _code(code: int, said: bytes | str) -> str:
    """`550 5.1.1`: the code and, where the reply begins with one, the enhanced code (RFC 3463)."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    enhanced = re.match(r"[245]\.\d{1,3}\.\d{1,3}(?=\s|$)", text)
    name = _SMTP_CODES.get(code, "")
    return " ".join(part for part in (str(code), enhanced[0] if enhanced else "", name and f"({name})") if part)


_SMTP_CODES = {
    421: "the service is not available",
    450: "the mailbox is busy",
    451: "it failed on its side",
    452: "it has no storage left",
    454: "signing in failed for now",
    530: "it wants you to sign in",
    534: "it wants another way of signing in",
    535: "it refused the user name or the password",
    550: "no such mailbox, or access denied",
    551: "the user is not local",
    552: "the mail is too large",
    553: "the mailbox name is not allowed",
    554: "the transaction failed",
}
"""RFC 5321 and RFC 4954, in our own words."""
