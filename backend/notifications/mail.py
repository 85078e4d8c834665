"""Sending a notice by SMTP."""

import smtplib
import socket
import ssl
from typing import Any

from backend.domain.notices import Security
from backend.notifications.failures import DeliveryFailed
from backend.notifications.messages import Message
from backend.outgoing import AddressRefused, allowed_address

TIMEOUT_SECONDS = 15.0
"""For each answer of the server."""


class _Smtp(smtplib.SMTP):
    """Connects to the address that was looked at; the host's own name stays that of the certificate."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return socket.create_connection((allowed_address(host, port), port), timeout)


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
        raise DeliveryFailed(f"{error}.") from error
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
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        told = "; ".join(f"{who}: {code} {_text(said)}" for who, (code, said) in error.recipients.items())
        return f"The server refused the recipients: {told}."
    if isinstance(error, smtplib.SMTPResponseException):
        return f"The server answered {error.smtp_code} {_text(error.smtp_error)}."
    return f"{error or type(error).__name__}."


def _text(said: bytes | str) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return " ".join(text.split())[:300].rstrip(".")
