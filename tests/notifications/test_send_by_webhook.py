"""A notice is posted as signed JSON; failures are shown, retried and given up."""

import base64
import hashlib
import hmac
import socket
import time
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.notifications.chat import WebhookFormat
from backend.domain.notifications.notices import PAUSES_SECONDS, DeliveryStatus
from backend.notifications import sending
from backend.notifications.tables import Notice, NoticeDelivery
from tests.factories import make_run
from tests.installation import forget_settings
from tests.notifications.receivers import Answer, WebServer, free_port
from tests.notifications.sending import NAMED, carry_out, let_the_pause_pass, only_delivery, tell, webhook
from workers.tasks import housekeeping, leases
from workers.tasks.notifications import enqueue_due

pytestmark = pytest.mark.usefixtures("committed_database")


def test_it_posts_the_evidence_and_absolute_links(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_PUBLIC_URL", "https://proctor.example.org/")
    forget_settings()
    with transaction() as session:
        webhook(session, web.url)
        run = make_run(session, name="tictactoe 3")
        tell(session, run_id=run.id, path=f"/runs/{run.id}/alarms")
    assert carry_out() == 1

    (got,) = web.received
    assert got.path == "/hook"
    assert got.headers["content-type"].startswith("application/json")
    assert "webhook-signature" not in got.headers
    page = f"https://proctor.example.org/runs/{run.id}"
    assert got.json["url"] == f"{page}/alarms"
    assert got.json["run"] == {"id": str(run.id), "name": "tictactoe 3", "url": page}
    assert (got.json["kind"], got.json["title"]) == ("alarm", "game is paused")
    assert got.json["evidence"] == {"step": 7, "rollouts": NAMED}
    links = [{"id": id, "url": f"https://proctor.example.org/rollouts/{id}"} for id in NAMED[:3]]
    assert got.json["rollouts"] == links
    delivery = only_delivery()
    assert (delivery.status, delivery.attempts, delivery.error) == (DeliveryStatus.DELIVERED, 1, None)
    assert delivery.delivered_at is not None
    assert carry_out() == 0


@pytest.mark.parametrize(
    ("secret", "key"),
    [("a passphrase", b"a passphrase"), ("whsec_" + base64.b64encode(b"k" * 24).decode(), b"k" * 24)],
)
def test_a_secret_signs_the_id_the_time_and_the_body(web: WebServer, secret: str, key: bytes) -> None:
    with transaction() as session:
        webhook(session, web.url, secret=secret)
        tell(session)
    carry_out()

    (got,) = web.received
    timestamp = got.headers["webhook-timestamp"]
    assert abs(int(timestamp) - time.time()) < 30
    signed = f"{got.headers['webhook-id']}.{timestamp}.".encode() + got.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"
    assert secret not in str(got)


def test_after_a_500_it_is_sent_again_later_with_the_same_id(web: WebServer) -> None:
    web.answers = [Answer(500, "database is locked"), Answer(200)]
    with transaction() as session:
        webhook(session, web.url)
        tell(session)
    carry_out()
    first = only_delivery()
    assert (first.status, first.attempts) == (DeliveryStatus.WAITING, 1)
    assert "HTTP 500 (unknown type, 18 bytes)" in (first.error or "")
    assert "database is locked" not in (first.error or "")
    assert enqueue_due() == 0  # its pause is not over

    let_the_pause_pass()
    assert enqueue_due() == 1
    carry_out()
    assert only_delivery().status is DeliveryStatus.DELIVERED
    ids = [each.headers["webhook-id"] for each in web.received]
    assert ids == [str(first.id)] * 2


def test_no_one_listens_and_it_is_given_up_after_the_last_pause() -> None:
    with transaction() as session:
        webhook(session, f"http://127.0.0.1:{free_port()}/hook")
        tell(session)
    for attempt in range(1, len(PAUSES_SECONDS) + 1):
        carry_out()
        delivery = only_delivery()
        assert (delivery.status, delivery.attempts) == (DeliveryStatus.WAITING, attempt)
        let_the_pause_pass()
        assert enqueue_due() == 1
    carry_out()
    delivery = only_delivery()
    assert (delivery.status, delivery.attempts) == (DeliveryStatus.FAILED, len(PAUSES_SECONDS) + 1)
    assert "could not be reached" in (delivery.error or "")
    let_the_pause_pass()
    assert enqueue_due() == 0


def test_one_that_drips_is_not_waited_for(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 0.2)
    web.answers = [Answer(wait_seconds=0.6)]
    with transaction() as session:
        webhook(session, web.url)
        tell(session)
    began = time.monotonic()
    carry_out()
    assert time.monotonic() - began < 0.6
    delivery = only_delivery()
    assert delivery.status is DeliveryStatus.WAITING
    assert delivery.error


def test_a_redirect_is_not_followed(web: WebServer) -> None:
    web.answers = [Answer(302, headers={"Location": "http://127.0.0.1:1/secret"})]
    with transaction() as session:
        webhook(session, web.url, secret="s")
        tell(session)
    carry_out()
    assert len(web.received) == 1
    delivery = only_delivery()
    assert delivery.status is DeliveryStatus.FAILED
    assert "Redirects are not followed" in (delivery.error or "")


@pytest.mark.parametrize(("status", "again"), [(404, False), (410, False), (429, True), (503, True)])
def test_what_would_be_refused_again_is_given_up_at_once(web: WebServer, status: int, again: bool) -> None:
    web.answers = [Answer(status, "no")]
    with transaction() as session:
        webhook(session, web.url)
        tell(session)
    carry_out()
    assert only_delivery().status is (DeliveryStatus.WAITING if again else DeliveryStatus.FAILED)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_private_networks_are_refused_where_the_operator_says_so(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    forget_settings()
    with transaction() as session:
        webhook(session, web.url.replace("127.0.0.1", host))
        tell(session)
    carry_out()
    assert web.received == []
    assert "private network" in (only_delivery().error or "")


def test_a_name_is_resolved_once_and_the_request_goes_to_that_address(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name resolves to the server at the first lookup, and elsewhere at the next."""
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    monkeypatch.setenv("PROCTOR_ALLOWED_PRIVATE_HOSTS", "hooks.example.org")
    forget_settings()
    port = web.url.split(":")[2].split("/")[0]
    real, asked = socket.getaddrinfo, []

    def resolve(host: str, *args: object, **options: object) -> object:
        if host == "hooks.example.org":
            asked.append(host)
            address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port)))]
        return real(host, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with transaction() as session:
        webhook(session, f"http://hooks.example.org:{port}/hook")
        tell(session)
    carry_out()
    (got,) = web.received
    assert got.headers["host"] == f"hooks.example.org:{port}"
    assert asked == ["hooks.example.org"]


def test_a_destination_gets_only_what_it_chose(web: WebServer) -> None:
    with transaction() as session:
        webhook(session, web.url, kinds=("run_failed", "onset"))
        tell(session)
    assert carry_out() == 0
    with transaction() as session:
        assert session.scalars(select(Notice)).one().title == "game is paused"
        assert session.scalars(select(NoticeDelivery)).all() == []


def test_what_is_rolled_back_is_not_reported(web: WebServer) -> None:
    with transaction() as session:
        webhook(session, web.url)

    def fail() -> None:
        with transaction() as session:
            tell(session)
            raise RuntimeError("the run did not pause after all")

    with pytest.raises(RuntimeError, match="after all"):
        fail()
    with transaction() as session:
        assert session.scalars(select(Job)).all() == []
        assert session.scalars(select(Notice)).all() == []


def test_a_job_that_breaks_again_and_again_gives_the_delivery_up(web: WebServer) -> None:
    with transaction() as session:
        webhook(session, web.url)
        tell(session)
    with transaction() as session:
        job = session.scalars(select(Job)).one()
        leases.give_up(session, job, "KeyError: 'url'")
    delivery = only_delivery()
    assert (delivery.status, delivery.error) == (DeliveryStatus.FAILED, "KeyError: 'url'")


def test_a_secret_that_cannot_be_opened_any_more_is_requested(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction() as session:
        webhook(session, web.url, secret="s")
        tell(session)
    monkeypatch.setenv("PROCTOR_SECRET_KEY", "another key of the installation")
    forget_settings()
    carry_out()
    assert web.received == []
    delivery = only_delivery()
    assert delivery.status is DeliveryStatus.FAILED
    assert "Enter the secret of chat again" in (delivery.error or "")


def test_notices_are_forgotten_after_90_days_with_their_deliveries(web: WebServer) -> None:
    with transaction() as session:
        webhook(session, web.url)
        tell(session, "old")
        session.execute(update(Notice).values(created_at=Notice.created_at - timedelta(days=91)))
        tell(session, "new")
    housekeeping.tidy()
    with transaction() as session:
        assert session.scalars(select(Notice.title)).all() == ["new"]
    assert only_delivery().notice.title == "new"


@pytest.mark.parametrize("format", [WebhookFormat.SLACK, WebhookFormat.DISCORD])
def test_a_chat_gets_its_format(web: WebServer, format: WebhookFormat) -> None:
    with transaction() as own:
        webhook(own, web.url).configuration = {"url": web.url, "format": str(format)}
        tell(own)
    carry_out()
    (got,) = web.received
    assert ("blocks" in got.json, "embeds" in got.json) == (format == "slack", format == "discord")
    assert "game is paused" in str(got.json)
