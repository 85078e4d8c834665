"""OpenEnv's WebSocket protocol, client side: one socket is one session of text JSON frames, in lock step, without ids.

A late answer would be taken for the next one, so a socket that timed out is never read again.

The server is foreign code. Each frame is validated once, here: values that leave this module have the declared types,
finite numbers and a bounded depth. Everything else is an error of this one episode.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType

from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, SandboxError

JsonObject = dict[str, Any]
MAX_FRAME_BYTES = 8_000_000
MAX_DEPTH = 254
"""Nested objects and lists of one frame. Code that walks a value later may recurse this deep; orjson writes as deep."""
LARGEST_REWARD = 3.4e38
"""The database stores rewards in four bytes."""
MAX_COLUMNS = 1000
"""Reward columns of one step."""


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


@dataclass(slots=True, eq=False)
class Wire:
    """One WebSocket to an environment's server. Broken after any failure except an error of the environment."""

    _socket: ClientWebSocketResponse
    _columns_from: str | None = None
    _busy: bool = False
    is_broken: bool = False

    @property
    def is_open(self) -> bool:
        return not self.is_broken and not self._socket.closed

    async def close(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                if self.is_open:
                    await self._socket.send_str('{"type":"close"}')
                await self._socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # no one waits for it
        self.is_broken = True

    async def observe(self, kind: str, data: Mapping[str, object], timeout: float) -> Observation:
        """Send a `reset` with its arguments or a `step` with its action."""
        try:
            frame = orjson.dumps({"type": kind, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY)
        except (TypeError, orjson.JSONEncodeError) as error:
            refused = ActionRefused if kind == "step" else EnvError
            raise refused(f"{kind}: this cannot be sent as JSON: {error}") from error
        return read_observation(await self.exchange(frame, "observation", kind, timeout), self._columns_from)

    async def exchange(self, frame: bytes, expected: str, request: str, timeout: float) -> JsonObject:
        """Send a frame and return the data of the answer, which has to be of the `expected` type."""
        if self._busy:
            raise EnvError(f"{request}: the last request of this session is still open")
        if self.is_broken:
            raise ServerIsGone(f"{request}: this session is broken")
        self._busy, self.is_broken = True, True  # whatever breaks in between, a cancellation included
        try:
            async with asyncio.timeout(timeout):
                await self._socket.send_frame(frame, WSMsgType.TEXT)
                message = await self._socket.receive()
        except TimeoutError:
            raise DeadlinePassed(f"{request}: no answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerIsGone(f"{request}: the connection was lost: {error}") from error
        finally:
            self._busy = False
        answer = read_frame(message, self._socket, request)
        kind, data = answer.get("type"), answer.get("data")
        if not isinstance(data, dict):
            raise EnvError(f"{request}: the server's frame has no data object: {str(answer)[:200]}")
        if kind == "error":
            # these arrive unrequested right after the connection was made; the server then closes it
            self.is_broken = str(data.get("code", "")) in {"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"}
            raise read_error(data, request)
        if kind != expected:
            raise EnvError(f"{request}: the server answered with {str(kind)[:80]!r} instead of {expected!r}")
        self.is_broken = False
        return data


def read_frame(message: aiohttp.WSMessage, socket: ClientWebSocketResponse, request: str) -> JsonObject:
    """Decode an answer. Raises a RolloutError unless it is a JSON object of bounded size and depth."""
    if message.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR}:
        if socket.close_code == WSCloseCode.MESSAGE_TOO_BIG:
            raise LimitExceeded(f"{request}: the answer is larger than {MAX_FRAME_BYTES:,} bytes")
        raise ServerIsGone(f"{request}: the server closed the connection (code {socket.close_code})")
    if message.type is not WSMsgType.TEXT:
        raise EnvError(f"{request}: the server sent a {message.type.name.lower()} frame instead of text")
    try:
        answer = orjson.loads(message.data)
    except orjson.JSONDecodeError as error:
        raise EnvError(f"{request}: the server did not answer with JSON: {error}") from error
    if message.data.count("[") + message.data.count("{") > MAX_DEPTH:  # fewer brackets cannot nest deeper
        try:
            orjson.dumps(answer)
        except orjson.JSONEncodeError:
            raise EnvError(f"{request}: the server's frame is nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(answer, dict):
        raise EnvError(f"{request}: the server's frame is not an object: {str(answer)[:200]}")
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
