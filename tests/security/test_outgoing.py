"""Requests to addresses that users choose reach only what this installation allows, and repeat nothing of an error."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from pydantic import SecretStr, ValidationError

from backend.core.outgoing import AddressRefused, OutgoingPolicy, outgoing_policy
from backend.core.outgoing.client import Redirected, open_session, reason_of, refusal_in
from backend.domain.addresses import BadHost, Reach, canonical_host, reach_of
from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import PackageInvalid
from backend.domain.errors import LimitExceeded, PolicyError, SandboxError
from backend.domain.notifications.notices import NoticeKind
from backend.domain.policies.connections import ConnectionReport
from backend.environments.import_sources import checked_url, read_repository
from backend.notifications.sending import DeliveryFailed, Message, send_webhook
from backend.settings import Settings, get_settings
from tests.environments.importing.repository import served
from tests.policies.endpoint import ask, completion, serving
from workers.environments.host import host_outgoing_policy
from workers.environments.relays import open_relay
from workers.environments.servers import listen
from workers.policies.probe import probe

SECRET = "internal-database-password-hunter2"
Configure = Callable[..., None]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Private addresses are refused; `allowed` is the allow list."""

    def set_up(allowed: str = "", private: str = "false") -> None:
        monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", private)
        monkeypatch.setenv("PROCTOR_ALLOWED_PRIVATE_HOSTS", allowed)
        get_settings.cache_clear()

    yield set_up
    monkeypatch.undo()
    get_settings.cache_clear()


class Service:
    """A service in the private network, which counts who reaches it."""

    def __init__(self) -> None:
        self.port = 0
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.status = 500
        self.location = ""
        self.content_type = "application/json"
        self.body = f'{{"error": {{"message": "{SECRET}", "code": "{SECRET}", "type": "server_error"}}}}'

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        if self.location:
            raise web.HTTPTemporaryRedirect(self.location)
        if request.path == "/ws":
            wire = web.WebSocketResponse()
            await wire.prepare(request)
            async for message in wire:
                if message.type is WSMsgType.TEXT:
                    await wire.send_str(message.data)
            return wire
        return web.Response(text=self.body, status=self.status, content_type=self.content_type)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.port = runner.addresses[0][1]
    try:
        yield service
    finally:
        await runner.cleanup()


# the policy itself

PRIVATE = [
    *("0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "172.16.0.1", "192.0.0.1", "192.0.2.1"),
    *("192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "240.0.0.1", "::", "::1", "::ffff:127.0.0.1"),
    *("::ffff:10.0.0.1", "::127.0.0.1", "::10.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::127.0.0.1"),
    *("64:ff9b::10.0.0.1", "64:ff9b:1::10.0.0.1", "64:ff9b:1::8.8.8.8", "2002:7f00:1::", "2002:a00:1::"),
    *("2002:808:808::", "2001::1", "fc00::1", "fd12::1", "fec0::1", "2001:db8::1", "100::1", "4000::1"),
    *("2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:10.0.0.1"),
]
ALWAYS_REFUSED = [
    *("169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192", "224.0.0.1"),
    *("239.255.255.250", "255.255.255.255", "fe80::1", "ff02::1", "fd00:ec2::254", "::ffff:169.254.169.254"),
    *("64:ff9b::169.254.169.254", "2002:a9fe:a9fe::", "64:ff9b:1::169.254.169.254"),
]
PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "::ffff:8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_in_any_notation_are_private(address: str) -> None:
    reach = reach_of(ipaddress.ip_address(address))
    assert reach >= Reach.PRIVATE
    with pytest.raises(AddressRefused):
        OutgoingPolicy(allow_private=False).check("name.example", address, 80)
    if reach is Reach.PRIVATE:
        OutgoingPolicy(allow_private=True).check("name.example", address, 80)


@pytest.mark.parametrize("address", ALWAYS_REFUSED)
def test_metadata_services_are_refused_even_where_private_addresses_are_allowed(address: str) -> None:
    assert reach_of(ipaddress.ip_address(address)) is Reach.LINK_LOCAL
    with pytest.raises(AddressRefused, match="PROCTOR_ALLOWED_PRIVATE_HOSTS"):
        OutgoingPolicy(allow_private=True).check("name.example", address, 80)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert reach_of(ipaddress.ip_address(address)) < Reach.PRIVATE
    OutgoingPolicy(allow_private=False).check("name.example", address, 443)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "127.0.1",
            "0",
            "fe80::1%eth0",
            "::1%1",
            "a b",
            "",
        ),
        *("", "exa\tmple.com", "foo/bar", "1.2.3.4.5", "foo.0x10", "-a.example", "a..b"),
    ],
)
def test_hosts_that_programs_read_differently_are_refused(host: str) -> None:
    with pytest.raises(BadHost):
        canonical_host(host)
    with pytest.raises(AddressRefused):
        OutgoingPolicy(allow_private=False).resolve(host, 80)


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        *(("LocalHost.", "localhost"), ("127.0.0.1.", "127.0.0.1"), ("[::1]", "::1"), ("0:0:0:0:0:0:0:1", "::1")),
        *(
            ("ＬＯＣＡＬＨＯＳＴ", "localhost"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("a_b.example", "a_b.example"),
        ),
    ],
)
def test_hosts_have_one_notation(host: str, canonical: str) -> None:
    assert canonical_host(host) == canonical


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "[::1]", "::ffff:127.0.0.1", "0.0.0.0"])
def test_names_and_literals_of_this_machine_are_refused(host: str) -> None:
    with pytest.raises(AddressRefused):
        OutgoingPolicy(allow_private=False).resolve(host, 80)
    assert OutgoingPolicy(allow_private=True).resolve(host, 80).addresses


def test_a_name_with_one_private_address_among_public_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 80)) for each in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(AddressRefused):
        OutgoingPolicy(allow_private=False).resolve("mixed.example", 80)


# settings

PRODUCTION = {"stage": "production", "secret_key": SecretStr("k" * 32)}


def test_private_addresses_are_refused_in_production_unless_chosen_otherwise() -> None:
    refused = outgoing_policy(Settings(**PRODUCTION))
    assert not refused.allow_private
    assert outgoing_policy(Settings(**PRODUCTION, allow_private_endpoints=True)).allow_private
    assert outgoing_policy(Settings(stage="development")).allow_private
    assert not outgoing_policy(Settings(stage="development", allow_private_endpoints=False)).allow_private


def test_an_empty_variable_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "")
    assert not Settings(**PRODUCTION).private_endpoints_allowed
    assert Settings(stage="development").private_endpoints_allowed


def test_an_env_host_on_the_network_refuses_private_addresses_unless_reported() -> None:
    assert not host_outgoing_policy(Settings(envhost_url="http://0.0.0.0:8010")).allow_private
    assert host_outgoing_policy(Settings(envhost_url="http://0.0.0.0:8010", allow_private_endpoints=True)).allow_private
    assert host_outgoing_policy(Settings()).allow_private


def test_the_allow_list_takes_hosts_ports_addresses_and_networks() -> None:
    entries = "10.0.0.5:8000, vllm.internal, 192.168.0.0/16, [::1]:9000, 169.254.169.254:80"
    policy = outgoing_policy(Settings(**PRODUCTION, allowed_private_hosts=entries))
    for host, address, port in (
        ("10.0.0.5", "10.0.0.5", 8000),
        ("anything.example", "10.0.0.5", 8000),
        ("vllm.internal", "10.9.9.9", 1234),
        ("192.168.7.7", "192.168.7.7", 1),
        ("::1", "::1", 9000),
        ("169.254.169.254", "169.254.169.254", 80),
    ):
        policy.check(host, address, port)
    for host, address, port in (
        ("10.0.0.5", "10.0.0.5", 22),
        ("other.internal", "10.9.9.9", 1234),
        ("evil.vllm.internal", "10.9.9.9", 1234),
        ("::1", "::1", 9001),
        ("169.254.169.254", "169.254.169.254", 8080),
    ):
        with pytest.raises(AddressRefused):
            policy.check(host, address, port)


@pytest.mark.parametrize("entry", ["10.0.0.1/8", "a b", "host:99999", "http://host", "1.2.3"])
def test_a_wrong_entry_of_the_allow_list_is_named_at_the_start(entry: str) -> None:
    with pytest.raises(ValidationError, match="allowed_private_hosts"):
        Settings(allowed_private_hosts=f"10.0.0.1, {entry}")


# the client

LITERALS = ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"]


@pytest.mark.parametrize("host", LITERALS)
async def test_the_client_reaches_no_private_address_in_any_notation(configure: Configure, host: str) -> None:
    configure()
    async with running(Service()) as service:
        async with open_session(seconds=5) as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{host}:{service.port}/")
        assert service.paths == []
        configure(f"127.0.0.1:{service.port}")
        async with open_session(seconds=5) as session, session.get(f"{service.url}/control") as response:
            assert response.status == 500
    assert service.paths == ["/control"]


async def test_a_name_that_leads_elsewhere_the_second_time_is_not_followed(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: each connection is made to an address that was checked, also after the name was forgotten."""
    real = socket.getaddrinfo
    answers = ["93.184.216.34", "127.0.0.1"]

    def resolve(host: str, port: int, *rest: object, **options: object) -> object:
        if host == "rebinding.example":
            address = answers.pop(0) if len(answers) > 1 else answers[0]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]
        return real(host, port, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    configure()
    async with running(Service()) as service:
        outgoing_policy().check_host("rebinding.example", service.port)  # as a form does: public
        async with open_session(seconds=5) as session:
            with pytest.raises(aiohttp.ClientError) as caught:
                await session.get(f"http://rebinding.example:{service.port}/")
            assert isinstance(refusal_in(caught.value), AddressRefused)
    assert service.paths == []


@pytest.mark.parametrize("is_websocket", [False, True])
async def test_no_redirect_is_followed_not_even_to_an_allowed_host(configure: Configure, is_websocket: bool) -> None:
    async with running(Service()) as inner, running(Service()) as outer:
        configure(f"127.0.0.1:{outer.port}, 127.0.0.1:{inner.port}")
        outer.location = f"{inner.url}/ws?token={SECRET}"
        async with open_session(seconds=5, headers={"Authorization": "Bearer key"}) as session:
            send = session.ws_connect if is_websocket else session.get
            with pytest.raises(Redirected) as caught:
                await send(f"{outer.url}/ws")
            assert inner.paths == []
            assert SECRET not in reason_of(caught.value)
            async with session.ws_connect(f"ws://127.0.0.1:{inner.port}/ws") as wire:  # the honest twin
                await wire.send_str("hello")
                assert (await wire.receive()).data == "hello"


async def test_proxies_of_the_environment_are_not_used(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(Service()) as proxy, running(Service()) as service:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        configure(f"127.0.0.1:{service.port}")
        async with open_session(seconds=5) as session, session.get(f"{service.url}/x"):
            pass
    assert (proxy.paths, service.paths) == ([], ["/x"])


async def test_a_banner_of_another_protocol_is_not_repeated(configure: Configure) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"220 {SECRET}\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    configure(private="true")
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(PolicyError, match=r"does not speak HTTP|closed the connection") as caught:
            await ask(f"http://127.0.0.1:{port}/v1")
        report = await probe(f"http://127.0.0.1:{port}/v1", "m", "key", {})
    assert SECRET not in f"{caught.value} {report.model_dump_json()}"


# every feature


async def test_an_endpoint_in_a_private_network_gets_no_request_and_no_key(configure: Configure) -> None:
    configure()
    async with serving(completion()) as endpoint:
        for host in LITERALS:
            with pytest.raises(PolicyError):
                await ask(endpoint.url.replace("127.0.0.1", host))
        assert endpoint.bodies == []
        configure(endpoint.url.split("/")[2])
        assert (await ask(endpoint.url)).text == "<move>1</move>"


async def test_an_endpoint_that_redirects_passes_neither_prompt_nor_key_on(configure: Configure) -> None:
    async with running(Service()) as outer, serving(completion()) as inner:
        configure(private="true")
        outer.location = inner.url + "/chat/completions"
        with pytest.raises(PolicyError, match="redirects"):
            await ask(f"{outer.url}/v1")
        assert inner.bodies == []
        await ask(inner.url)
        assert len(inner.bodies) == 1


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 418, 422, 429, 500])
@pytest.mark.parametrize("kind", ["json", "html", "word"])
async def test_error_bodies_of_services_are_not_repeated(configure: Configure, status: int, kind: str) -> None:
    """Neither on a rollout nor in a connection test; the status, type and size are."""
    configure(private="true")
    async with running(Service()) as service:
        service.status = status
        if kind == "html":
            service.body, service.content_type = f"<html>{SECRET}</html>", "text/html"
        if kind == "word":
            service.body, service.content_type = SECRET, f"text/{SECRET[:10]}"
        with pytest.raises(PolicyError, match=str(status) if status != 200 else "no chat completion|bytes") as caught:
            await ask(f"{service.url}/v1", attempts=1)
        report: ConnectionReport = await probe(f"{service.url}/v1", "m", "key", {})
    assert service.paths
    assert SECRET not in f"{caught.value} {report.model_dump_json()}"


async def test_a_known_error_code_and_our_own_advice_are_shown(configure: Configure) -> None:
    configure(private="true")
    async with running(Service()) as service:
        service.status = 404
        service.body = '{"error": {"message": "The model `x` does not exist", "code": "model_not_found"}}'
        with pytest.raises(PolicyError, match=r"HTTP 404 \(model_not_found\)\. The server does not know this model"):
            await ask(f"{service.url}/v1")
        service.status = 400
        service.body = '{"object": "error", "message": "maximum context length is 4096", "type": "BadRequestError"}'
        with pytest.raises(
            LimitExceeded, match=r"HTTP 400 \(BadRequestError\)\. The prompt and the token limit exceed"
        ):
            await ask(f"{service.url}/v1")


MESSAGE = Message(
    delivery_id="d",
    notice_id="n",
    kind=NoticeKind.ALARM,
    title="title",
    text="text",
    url="http://proctor.example/runs/1",
    run=None,
    rollouts=[],
    evidence={},
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


async def test_a_webhook_reaches_no_private_address(configure: Configure) -> None:
    async with running(Service()) as service:
        service.status = 204
        configure()
        for host in LITERALS:
            with pytest.raises(DeliveryFailed):
                await asyncio.to_thread(send_webhook, {"url": f"http://{host}:{service.port}/hook"}, MESSAGE, "secret")
        assert service.paths == []
        configure(f"127.0.0.1:{service.port}")
        await asyncio.to_thread(send_webhook, {"url": f"{service.url}/hook"}, MESSAGE, "secret")
        assert service.paths == ["/hook"]
        service.status = 500
        with pytest.raises(DeliveryFailed, match="HTTP 500") as caught:
            await asyncio.to_thread(send_webhook, {"url": f"{service.url}/hook"}, MESSAGE, "secret")
        assert SECRET not in str(caught.value)


@asynccontextmanager
async def relayed(url: str, folder: Path, policy: OutgoingPolicy) -> AsyncIterator[aiohttp.ClientSession]:
    path = folder / "s"
    relay = await open_relay(ResourcesSpec(remote=url), listen(path), policy=policy)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
            yield session
    finally:
        relay.kill()
        await relay.exited.wait()


async def test_a_remote_environment_in_a_private_network_is_refused(tmp_path: Path) -> None:
    closed = OutgoingPolicy(allow_private=False)
    for host in (*LITERALS, "169.254.169.254", "10.0.0.1", "[::1]", "[64:ff9b::7f00:1]"):
        with pytest.raises(SandboxError, match="cannot be used"):
            await open_relay(ResourcesSpec(remote=f"http://{host}:9"), object(), policy=closed)


async def test_a_remote_environment_cannot_redirect_into_a_private_network(tmp_path: Path) -> None:
    async with running(Service()) as outer, running(Service()) as inner:
        only_outer = OutgoingPolicy.only(outer.url)
        async with relayed(outer.url, tmp_path, only_outer) as session:
            async with session.ws_connect("ws://server/ws") as wire:  # the honest twin
                await wire.send_str("hello")
                assert (await wire.receive()).data == "hello"
            outer.location = f"{inner.url}/ws"
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect("ws://server/ws")
            async with session.get("http://server/schema") as response:
                assert response.status == 502
    assert inner.paths == []


async def test_a_relay_carries_no_error_body_and_no_other_path(tmp_path: Path) -> None:
    async with running(Service()) as service, relayed(service.url, tmp_path, OutgoingPolicy(True)) as session:
        async with session.get("http://server/schema") as response:
            told = f"{response.reason} {await response.text()}"
            assert response.status == 502
        assert "HTTP 500" in told
        assert SECRET not in told
        before = list(service.paths)
        async with session.get("http://server/admin/keys") as response:
            assert response.status == 404
        assert service.paths == before
        service.status, service.body = 200, '{"action": {}}'
        async with session.get("http://server/schema") as response:
            assert await response.json() == {"action": {}}


@pytest.mark.slow
def test_git_reaches_no_private_address(configure: Configure, tmp_path: Path) -> None:
    with served(tmp_path) as repository:
        repository.commit({"openenv.yaml": b"name: x"})
        configure()
        for host in (*LITERALS, "[::1]"):
            with pytest.raises(PackageInvalid):
                read_repository(repository.url.replace("127.0.0.1", host))
        for url in ("file:///etc", "ssh://127.0.0.1/x", "ext::sh -c id", "git://127.0.0.1/x", "/etc"):
            with pytest.raises(PackageInvalid):
                read_repository(url)
        assert repository.asked == []
        configure(repository.url.split("/")[2])
        assert read_repository(repository.url) == {"openenv.yaml": b"name: x"}


@pytest.mark.slow
def test_git_connects_to_the_address_that_was_checked(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is known to this process alone, so that git can only have used the address that it was given."""
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *rest: object, **options: object) -> object:
        if host == "git.internal":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        return real(host, port, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    configure("git.internal")
    with served(tmp_path) as repository:
        repository.commit({"a.txt": b"a"})
        assert read_repository(repository.url.replace("127.0.0.1", "git.internal")) == {"a.txt": b"a"}


@pytest.mark.slow
async def test_git_does_not_repeat_what_a_server_states(configure: Configure) -> None:
    configure(private="true")
    async with running(Service()) as service:
        for status in (200, 401, 403, 404, 500):
            service.status, service.content_type, service.body = status, "text/plain", f"fatal: {SECRET}\n"
            with pytest.raises(PackageInvalid, match="cannot be cloned") as caught:
                await asyncio.to_thread(read_repository, f"{service.url}/it.git")
            assert SECRET not in str(caught.value)
    assert service.paths


def test_addresses_are_checked_when_they_are_entered(configure: Configure) -> None:
    configure("10.0.0.5:8000")
    for host in (*LITERALS, "10.0.0.5", "10.0.0.5:8001", "[::1]", "169.254.169.254"):
        with pytest.raises(PackageInvalid):
            checked_url(f"http://{host}/x")
    assert checked_url("http://10.0.0.5:8000/x") == "http://10.0.0.5:8000/x"
