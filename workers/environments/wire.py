"""OpenEnv's WebSocket protocol, client side: one socket is one session of text JSON frames, in lock step, without ids.

A late answer would be taken for the next one, so a socket that timed out is never read again. Where the env host's own
server speaks it, many sessions share one socket instead, each with the same messages: see `inside/shared_connection`.

The server is foreign code. Each frame is validated once, here: values that leave this module have the declared types,
finite numbers and a bounded depth. Everything else is an error of this one episode.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson
from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType

from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, SandboxError
from workers.environments.inside.shared_connection import MAX_FRAME_BYTES, join_messages, split_messages

JsonObject = dict[str, Any]
MAX_DEPTH = 254
"""Nested objects and lists of one frame. Code that walks a value later may recurse this deep; orjson writes as deep."""
LARGEST_REWARD = 3.4e38
"""The database stores rewards in four bytes."""
MAX_COLUMNS = 1000
"""Reward columns of one step."""
_CLOSE = '{"type":"close"}'


class ServerIsFull(SandboxError):
    """The environment's server has no free session."""


class DeadlinePassed(LimitExceeded):
    """No answer came in time, and none will be read any more."""


class ServerIsGone(SandboxError):
    """The connection to the environment's server was lost."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's answer to a reset or a step."""

    fields: JsonObject
    """The observation's own fields, without reward, done and metadata."""
    reward: float | None
    done: bool
    metadata: JsonObject
    rewards: dict[str, float] = field(default_factory=dict)
    """Reward columns of this step; finite numbers."""


class Channel(Protocol):
    """Carries the messages of one session."""

    @property
    def is_open(self) -> bool: ...

    async def ask(self, message: bytes, request: str) -> str | bytes:
        """Send a message and return the answer. Raises a RolloutError, after which the session has ended."""

    async def close(self) -> None:
        """End the session; returns when the server has ended it, too, or after a second."""


class PlainChannel:
    """A separate socket, as OpenEnv defines it."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket

    @property
    def is_open(self) -> bool:
        return not self._socket.closed

    async def ask(self, message: bytes, request: str) -> str | bytes:
        try:
            await self._socket.send_frame(message, WSMsgType.TEXT)
            answer = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise ServerIsGone(f"{request}: the connection was lost: {error}") from error
        if answer.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR}:
            if self._socket.close_code == WSCloseCode.MESSAGE_TOO_BIG:
                raise LimitExceeded(f"{request}: the answer is larger than {MAX_FRAME_BYTES:,} bytes")
            raise ServerIsGone(f"{request}: the server closed the connection (code {self._socket.close_code})")
        if answer.type is not WSMsgType.TEXT:
            raise EnvError(f"{request}: the server sent a {answer.type.name.lower()} frame instead of text")
        return str(answer.data)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                if not self._socket.closed:
                    await self._socket.send_str(_CLOSE)
                await self._socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # no one waits for it


class SharedSocket:
    """A socket with many sessions. Messages sent in the same turn of the event loop leave in one frame."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[bytes | None]] = {}
        """By the session that waits for it: its message, empty if the server ended the session, None if too large."""
        self._newest = -1
        self._outgoing: list[tuple[int, bytes]] = []
        self._has_outgoing = asyncio.Event()
        self._problem = ""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    @property
    def is_open(self) -> bool:
        return not self._problem

    def new_number(self) -> int:
        """The number of a session whose first message is sent next: the server reads them in their order."""
        self._newest += 1
        return self._newest

    async def exchange(self, number: int, message: bytes) -> bytes | None:
        """Send a message and return its answer. Raises ConnectionError once the socket is lost."""
        if self._problem:
            raise ConnectionError(self._problem)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._outgoing.append((number, message))
        self._has_outgoing.set()
        try:
            return await answer
        finally:
            self._answers.pop(number, None)

    async def close(self) -> None:
        self._lose("the client closed the connection")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(1.0):
                await self._socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # no one waits for it

    async def _read(self) -> None:
        problem = "the server sent a frame that does not belong to this protocol"
        try:
            async for frame in self._socket:
                if frame.type is not WSMsgType.BINARY:
                    break
                for number, message in split_messages(frame.data):
                    answer = self._answers.get(number)  # none: the session gave up and ignores a late answer
                    if answer is not None and not answer.done():
                        answer.set_result(message)
            else:
                problem = f"the server closed the connection (code {self._socket.close_code})"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = f"the connection was lost: {error}"
        self._lose(problem)
        await self._socket.close()

    async def _write(self) -> None:
        try:
            while await self._has_outgoing.wait():
                self._has_outgoing.clear()
                messages, self._outgoing = self._outgoing, []
                for frame in join_messages(messages):
                    await self._socket.send_bytes(frame)
        except (aiohttp.ClientError, OSError) as error:
            self._lose(f"the connection was lost: {error}")

    def _lose(self, problem: str) -> None:
        """Fail the sessions that wait, and all later requests."""
        self._problem = self._problem or problem
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError(self._problem))


class SharedChannel:
    """One session on a shared socket."""

    def __init__(self, socket: SharedSocket) -> None:
        self._socket = socket
        self._number: int | None = None
        self._has_ended = False

    @property
    def is_open(self) -> bool:
        return self._socket.is_open and not self._has_ended

    async def ask(self, message: bytes, request: str) -> str | bytes:
        if len(message) > MAX_FRAME_BYTES // 2:
            raise LimitExceeded(f"{request}: this is larger than {MAX_FRAME_BYTES // 2:,} bytes")
        if self._number is None:
            self._number = self._socket.new_number()
        try:
            answer = await self._socket.exchange(self._number, message)
        except ConnectionError as error:
            raise ServerIsGone(f"{request}: {error}") from None
        if answer is None:
            raise LimitExceeded(f"{request}: the answer is larger than {MAX_FRAME_BYTES:,} bytes")
        if not answer:
            raise ServerIsGone(f"{request}: the server closed the session")
        return answer

    async def close(self) -> None:
        self._has_ended = True
        if self._number is None:
            return
        try:
            async with asyncio.timeout(1.0):
                while await self._socket.exchange(self._number, _CLOSE.encode()):
                    pass  # the answer to a request that was given up
        except (TimeoutError, ConnectionError):
            pass  # no one waits for it


@dataclass(slots=True, eq=False)
class Wire:
    """One session on an environment's server. Broken after any failure except an error of the environment."""

    _channel: Channel
    _columns_from: str | None = None
    _busy: bool = False
    is_broken: bool = False

    @property
    def is_open(self) -> bool:
        return not self.is_broken and self._channel.is_open

    async def close(self) -> None:
        await self._channel.close()
        self.is_broken = True

    async def observe(self, kind: str, data: Mapping[str, object], timeout: float) -> Observation:
        """Send a `reset` with its arguments or a `step` with its action."""
        try:
            message = orjson.dumps({"type": kind, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY)
        except (TypeError, orjson.JSONEncodeError) as error:
            refused = ActionRefused if kind == "step" else EnvError
            raise refused(f"{kind}: this cannot be sent as JSON: {error}") from error
        return read_observation(await self.exchange(message, "observation", kind, timeout), self._columns_from)

    async def exchange(self, message: bytes, expected: str, request: str, timeout: float) -> JsonObject:
        """Send a message and return the data of the answer, which has to be of the `expected` type."""
        if self._busy:
            raise EnvError(f"{request}: the last request of this session is still open")
        if self.is_broken:
            raise ServerIsGone(f"{request}: this session is broken")
        self._busy, self.is_broken = True, True  # whatever breaks in between, a cancellation included
        try:
            async with asyncio.timeout(timeout):
                received = await self._channel.ask(message, request)
        except TimeoutError:
            raise DeadlinePassed(f"{request}: no answer within {timeout:g} s") from None
        finally:
            self._busy = False
        answer = read_message(received, request)
        kind, data = answer.get("type"), answer.get("data")
        if not isinstance(data, dict):
            raise EnvError(f"{request}: the server's message has no data object: {str(answer)[:200]}")
        if kind == "error":
            # these arrive unrequested right after the connection was made; the server then closes it
            self.is_broken = str(data.get("code", "")) in {"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"}
            raise read_error(data, request)
        if kind != expected:
            raise EnvError(f"{request}: the server answered with {str(kind)[:80]!r} instead of {expected!r}")
        self.is_broken = False
        return data


def read_message(received: str | bytes, request: str) -> JsonObject:
    """Decode an answer. Raises a RolloutError unless it is a JSON object of bounded depth."""
    try:
        answer = orjson.loads(received)
    except orjson.JSONDecodeError as error:
        raise EnvError(f"{request}: the server did not answer with JSON: {error}") from error
    brackets = sum(map(received.count, ("[", "{"))) if isinstance(received, str) else sum(map(received.count, b"[{"))
    if brackets > MAX_DEPTH:  # fewer brackets cannot nest deeper
        try:
            orjson.dumps(answer)
        except orjson.JSONEncodeError:
            raise EnvError(f"{request}: the server's message is nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(answer, dict):
        raise EnvError(f"{request}: the server's message is not an object: {str(answer)[:200]}")
    return answer


def read_error(data: JsonObject, request: str) -> EnvError | SandboxError:
    """The exception for an error frame. Fields of a wrong type become text, so that the message still shows them."""
    code, message = str(data.get("code", ""))[:100], str(data.get("message", ""))[:2000]
    errors, invalid = data.get("errors"), []
    for error in errors[:5] if isinstance(errors, list) else []:
        if isinstance(error, dict):
            path = error.get("loc")  # pydantic reports the path of a field as a list
            place = ".".join(str(part)[:100] for part in path[:20]) if isinstance(path, list) else str(path or "")[:100]
            invalid.append(f"{place}: {str(error.get('msg', ''))[:500]}")
    invalid_fields = "; ".join(invalid)[:1000]
    match code:
        case "CAPACITY_REACHED":
            return ServerIsFull(message)
        case "SESSION_ERROR":
            return SandboxError(f"{request}: {message} ({code})")
        case "FACTORY_ERROR":
            return EnvError(f"the environment could not be created: {message} ({code})")
        case "VALIDATION_ERROR" if request == "step":
            return ActionRefused(invalid_fields or message)
        case "VALIDATION_ERROR":
            return EnvError(f"{request}: {invalid_fields or message} ({code})")
        case _:  # EXECUTION_ERROR, INVALID_JSON, UNKNOWN_TYPE
            return EnvError(f"{request}: {message} ({code})")


def read_observation(data: JsonObject, columns_from: str | None = None) -> Observation:
    """Validate an observation. `columns_from`: dotted path of its reward columns. Default: `metadata.rewards`."""
    fields = data.get("observation")
    if not isinstance(fields, dict):
        raise EnvError(f"the observation is not an object: {str(fields)[:200]}")
    nested = fields.pop("metadata", None)
    metadata = data.get("metadata") or nested or {}
    if not isinstance(metadata, dict):
        raise EnvError("the observation's metadata is not an object")
    done = data.get("done")
    if done is not None and not isinstance(done, bool):
        raise EnvError(f"done is {str(done)[:80]!r}, not true or false")
    reward = _number(data.get("reward"), "reward")
    path = columns_from or "metadata.rewards"
    sent: object = {**fields, "metadata": metadata}
    for part in path.split("."):  # missing on a step without a score
        sent = sent.get(part) if isinstance(sent, dict) else None
    if sent is None:  # a package that sends only the scalar has the one column `reward`
        return Observation(fields, reward, done is True, metadata, {} if reward is None else {"reward": reward})
    if not isinstance(sent, dict):
        raise EnvError(f"{path} is not an object of numbers by column")
    if len(sent) > MAX_COLUMNS:
        raise EnvError(f"{path} has {len(sent):,} columns; at most {MAX_COLUMNS:,} are read")
    columns = {}
    for name, value in sent.items():
        number = _number(value, f"reward column {name[:80]!r}")
        if number is None:
            raise EnvError(f"reward column {name[:80]!r} is null (NaN and infinity arrive as null)")
        columns[name] = number
    return Observation(fields, reward, done is True, metadata, columns)


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not -LARGEST_REWARD <= value <= LARGEST_REWARD:
        raise EnvError(f"{name} is {str(value)[:80]!r}, not a finite number within ±{LARGEST_REWARD:g}")
    return float(value)


def read_schema(sent: object) -> JsonObject:
    """A package's JSON schema whose `properties` can be read as objects by name, whatever the package sent."""
    if not isinstance(sent, dict):
        return {}
    properties = sent.get("properties")
    if properties is None:
        return sent
    fields = properties if isinstance(properties, dict) else {}
    return {**sent, "properties": {name: field if isinstance(field, dict) else {} for name, field in fields.items()}}
