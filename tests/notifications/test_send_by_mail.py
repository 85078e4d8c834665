"""A notice is sent by SMTP, with encryption and authentication if configured; its text cannot break a header."""

from collections.abc import Callable

import pytest

from backend.core.session import transaction
from backend.domain.notifications.notices import DeliveryStatus
from backend.notifications.tables import NoticeDestination
from tests.installation import forget_settings
from tests.notifications.receivers import MailServer, free_port
from tests.notifications.sending import NAMED, RECIPIENTS, carry_out, email, only_delivery, tell

pytestmark = [
    pytest.mark.usefixtures("committed_database"),
    pytest.mark.filterwarnings("ignore:Requiring AUTH:UserWarning"),  # the server does not know that TLS is around it
]
MakeServer = Callable[..., MailServer]


def test_it_sends_one_mail_with_the_link_and_the_evidence(mail_server: MakeServer) -> None:
    server = mail_server()
    with transaction() as session:
        email(session, server.port)
        tell(session, title="Träining is paused", path="/runs/7/alarms")
    carry_out()

    (mail,) = server.mails
    assert mail["subject"] == "[Proctor] Träining is paused"
    assert mail["from"] == "proctor@example.org"
    assert server.received[0].rcpt_tos == RECIPIENTS
    text = mail.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert "http://127.0.0.1:8000/runs/7/alarms" in text
    assert '"step": 7' in text
    assert f"For example: http://127.0.0.1:8000/rollouts/{NAMED[2]}" in text
    assert f"/rollouts/{NAMED[3]}" not in text
    assert only_delivery().status is DeliveryStatus.DELIVERED


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_it_signs_in_over_an_encrypted_connection(mail_server: MakeServer, trusted: None, security: str) -> None:
    server = mail_server(security=security, user="proctor", password="correct horse")
    with transaction() as session:
        email(session, server.port, security=security, user="proctor", secret="correct horse")
        tell(session)
    carry_out()
    assert only_delivery().error is None
    assert len(server.received) == 1


def test_a_certificate_that_no_one_vouches_for_is_refused(mail_server: MakeServer) -> None:
    server = mail_server(security="starttls", user="proctor", password="p")
    with transaction() as session:
        email(session, server.port, security="starttls", user="proctor", secret="p")
        tell(session)
    carry_out()
    assert "certificate verify failed" in (only_delivery().error or "")
    assert server.received == []


def test_a_server_without_encryption_is_not_given_the_mail(mail_server: MakeServer, trusted: None) -> None:
    server = mail_server(security="none")
    with transaction() as session:
        email(session, server.port, security="starttls")
        tell(session)
    carry_out()
    assert server.received == []
    delivery = only_delivery()
    assert delivery.status is DeliveryStatus.FAILED
    assert "STARTTLS" in (delivery.error or "")


def test_a_wrong_password_is_given_up_at_once(mail_server: MakeServer, trusted: None) -> None:
    server = mail_server(security="tls", user="proctor", password="right")
    with transaction() as session:
        email(session, server.port, security="tls", user="proctor", secret="wrong")
        tell(session)
    carry_out()
    delivery = only_delivery()
    assert delivery.status is DeliveryStatus.FAILED
    assert "535" in (delivery.error or "")
    assert "wrong" not in (delivery.error or "")


def test_recipients_that_are_unknown_are_reported(mail_server: MakeServer) -> None:
    server = mail_server()
    with transaction() as session:
        place = email(session, server.port)
        place.configuration = place.configuration | {"recipients": ["nobody@example.org"]}
        tell(session)
    carry_out()
    delivery = only_delivery()
    assert delivery.status is DeliveryStatus.FAILED
    assert "nobody@example.org: 550 (no such mailbox" in (delivery.error or "")
    assert "No such person here" not in (delivery.error or "")


def test_a_server_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction() as session:
        email(session, free_port())
        tell(session)
    carry_out()
    delivery = only_delivery()
    assert (delivery.status, delivery.attempts) == (DeliveryStatus.WAITING, 1)
    assert "Connection refused" in (delivery.error or "")


def test_private_networks_are_refused_where_the_operator_says_so(
    mail_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mail_server()
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    forget_settings()
    with transaction() as session:
        email(session, server.port)
        tell(session)
    carry_out()
    assert server.received == []
    assert "private network" in (only_delivery().error or "")


def test_a_title_cannot_begin_another_header(mail_server: MakeServer) -> None:
    server = mail_server()
    with transaction() as session:
        email(session, server.port)
        tell(session, title="hacked\r\nBcc: all@example.org\r\n\r\nHello\x00")
    carry_out()
    (mail,) = server.mails
    assert mail["bcc"] is None
    assert mail["subject"].startswith("[Proctor] hacked Bcc: all@example.org")
    assert server.received[0].rcpt_tos == RECIPIENTS


def test_a_stored_address_with_a_line_break_is_never_sent(mail_server: MakeServer) -> None:
    """Forms refuse it; a row that was written by hand does not get through either."""
    server = mail_server()
    with transaction() as session:
        place: NoticeDestination = email(session, server.port)
        place.configuration = place.configuration | {"sender": "a@example.org\r\nBcc: x@example.org"}
        tell(session)
    carry_out()
    assert server.received == []
    assert only_delivery().status is DeliveryStatus.WAITING
