"""OpenEnv's WebSocket wire, as a client sees it: one socket is one session, text JSON, in lock step, without ids.

After a timeout the late answer would be taken for the next one, so a socket that timed out is never read again.

The server is foreign code. Each frame is checked once, here: what leaves this module has the declared types, finite
numbers and a bounded depth, and everything else is an error of this one episode.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType

from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, SandboxError

MAX_FRAME_BYTES = 8_000_000
MAX_DEPTH = 254
"""Nested objects and lists of one frame. Everything that walks a value later may recurse this deep."""
LARGEST_REWARD = 3.4e38
"""The database stores rewards in four bytes."""
MAX_COLUMNS = 1000
"""Reward columns of one step."""
_GONE = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)
_STATE_FRAME = b'{"type":"state"}'


class ServerIsFull(SandboxError):
    """The environment's server supports no further session now."""


class DeadlinePassed(LimitExceeded):
    """No answer came in time, and none will be read any more."""


class ServerIsGone(SandboxError):
    """The connection to the environment's server was lost."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's answer to a reset or a step."""

    fields: dict[str, Any]
    """The observation's own fields, without reward, done and metadata."""
    reward: float | None
    done: bool
    metadata: dict[str, Any]
    rewards: dict[str, float] = field(default_factory=dict)
    """Reward columns of this step; finite numbers."""


def read_schema(sent: Any) -> dict[str, Any]:
    """A package's JSON schema whose `properties` can be read as objects by name, whatever the package sent."""
    if not isinstance(sent, dict):
        return {}
    properties = sent.get("properties")
    if properties is None:
        return sent
    fields = properties if isinstance(properties, dict) else {}
    return {**sent, "properties": {name: field if isinstance(field, dict) else {} for name, field in fields.items()}}


class Wire:
    """One WebSocket to an environment's server. Broken once it failed in any way but an error of the environment."""

    __slots__ = ("_busy", "_columns_from", "_socket", "is_broken")

    def __init__(self, socket: ClientWebSocketResponse, columns_from: str | None = None) -> None:
        self._socket, self._columns_from = socket, columns_from
        self._busy = False
        self.is_broken = False

    @property
    def is_open(self) -> bool:
        return not self.is_broken and not self._socket.closed

    async def reset(self, arguments: Mapping[str, Any], timeout: float) -> Observation:
        data = await self._ask(_frame("reset", arguments), "observation", "reset", timeout)
        return _observation(data, self._columns_from)

    async def step(self, action: Mapping[str, Any], timeout: float) -> Observation:
        data = await self._ask(_frame("step", action), "observation", "step", timeout)
        return _observation(data, self._columns_from)

    async def state(self, timeout: float) -> dict[str, Any]:
        return await self._ask(_STATE_FRAME, "state", "state", timeout)

    async def close(self) -> None:
        """Close the connection if it is still open."""
        try:
            async with asyncio.timeout(1.0):
                if self.is_open:
                    await self._socket.send_str('{"type":"close"}')
                await self._socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # nobody waits for it
        self.is_broken = True

    async def _ask(self, frame: bytes, expected: str, what: str, timeout: float) -> dict[str, Any]:
        if self._busy:
            raise EnvError(f"{what}: the last question of this session is still open")
        if self.is_broken:
            raise ServerIsGone(f"{what}: this session is broken")
        self._busy, self.is_broken = True, True  # whatever breaks in between, a cancellation included
        try:
            async with asyncio.timeout(timeout):
                await self._socket.send_frame(frame, WSMsgType.TEXT)
                message = await self._socket.receive()
        except TimeoutError:
            raise DeadlinePassed(f"{what}: no answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerIsGone(f"{what}: the connection was lost: {error}") from error
        finally:
            self._busy = False
        answer = _decode(message, self._socket, what)
        kind, data = answer.get("type"), answer.get("data")
        if not isinstance(data, dict):
            raise EnvError(f"{what}: the server's frame has no data object: {str(answer)[:200]}")
        if kind == "error":
            problem = _read_error(data)
            self.is_broken = problem.code in _SESSION_ENDS
            raise problem.as_exception(what)
        if kind != expected:
            raise EnvError(f"{what}: the server answered with {str(kind)[:80]!r} instead of {expected!r}")
        self.is_broken = False
        return data


def _frame(kind: str, data: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps({"type": kind, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY)
    except (TypeError, orjson.JSONEncodeError) as error:
        refused = ActionRefused if kind == "step" else EnvError
        raise refused(f"{kind}: this cannot be sent as JSON: {error}") from error


def _decode(message: aiohttp.WSMessage, socket: ClientWebSocketResponse, what: str) -> dict[str, Any]:
    if message.type in _GONE:
        if socket.close_code == WSCloseCode.MESSAGE_TOO_BIG:
            raise LimitExceeded(f"{what}: the answer is larger than {MAX_FRAME_BYTES:,} bytes")
        raise ServerIsGone(f"{what}: the server closed the connection (code {socket.close_code})")
    if message.type is not WSMsgType.TEXT:
        raise EnvError(f"{what}: the server sent a {message.type.name.lower()} frame instead of text")
    try:
        answer = orjson.loads(message.data)
    except orjson.JSONDecodeError as error:
        raise EnvError(f"{what}: the server did not answer with JSON: {error}") from error
    if _is_too_deep(message.data, answer):
        raise EnvError(f"{what}: the server's frame is nested deeper than {MAX_DEPTH} levels")
    if not isinstance(answer, dict):
        raise EnvError(f"{what}: the server's frame is not an object: {str(answer)[:200]}")
    return answer


def _is_too_deep(text: str, value: Any) -> bool:
    """Few brackets cannot nest deep, so most frames are decided by counting them; orjson writes up to MAX_DEPTH."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return True
    return False


_SESSION_ENDS = {"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"}
"""Sent unasked right after the connection was made; the server then closes it."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """An error frame, read. Fields of a wrong type become text, so that the message still shows them."""

    code: str
    message: str
    invalid_fields: str

    def as_exception(self, what: str) -> EnvError | SandboxError:
        match self.code:
            case "CAPACITY_REACHED":
                return ServerIsFull(self.message)
            case "SESSION_ERROR":
                return SandboxError(f"{what}: {self.message} ({self.code})")
            case "FACTORY_ERROR":
                return EnvError(f"the environment could not be created: {self.message} ({self.code})")
            case "VALIDATION_ERROR" if what == "step":
                return ActionRefused(self.invalid_fields or self.message)
            case "VALIDATION_ERROR":
                return EnvError(f"{what}: {self.invalid_fields or self.message} ({self.code})")
            case _:  # EXECUTION_ERROR, INVALID_JSON, UNKNOWN_TYPE
                return EnvError(f"{what}: {self.message} ({self.code})")


def _read_error(data: dict[str, Any]) -> _Problem:
    return _Problem(
        code=str(data.get("code", ""))[:100],
        message=str(data.get("message", ""))[:2000],
        invalid_fields=_invalid_fields(data.get("errors")),
    )


def _invalid_fields(errors: Any) -> str:
    if not isinstance(errors, list):
        return ""
    problems = [error for error in errors[:5] if isinstance(error, dict)]
    return "; ".join(f"{_location(error.get('loc'))}: {str(error.get('msg', ''))[:500]}" for error in problems)[:1000]


def _location(parts: Any) -> str:
    """The path of a field, as pydantic reports it."""
    return ".".join(str(part)[:100] for part in parts[:20]) if isinstance(parts, list) else str(parts or "")[:100]


def _observation(data: dict[str, Any], columns_from: str | None = None) -> Observation:
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
    sent = metadata.get("rewards") if columns_from is None else _at({**fields, "metadata": metadata}, columns_from)
    where = columns_from or "metadata.rewards"
    return Observation(fields, reward, done is True, metadata, _columns(sent, where, reward))


def _at(observation: dict[str, Any], path: str) -> Any:
    """Return the value at a dotted path; None if it is missing, as on a step without a score."""
    found: Any = observation
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _columns(sent: Any, where: str, reward: float | None) -> dict[str, float]:
    """The columns that were sent, or the one column `reward` of a package that sends only the scalar."""
    if sent is None:
        return {} if reward is None else {"reward": reward}
    if not isinstance(sent, dict):
        raise EnvError(f"{where} is not an object of numbers by column")
    if len(sent) > MAX_COLUMNS:
        raise EnvError(f"{where} has {len(sent):,} columns; at most {MAX_COLUMNS:,} are read")
    columns = {}
    for name, value in sent.items():
        number = _number(value, f"reward column {name[:80]!r}")
        if number is None:
            raise EnvError(f"reward column {name[:80]!r} is null (NaN and infinity arrive as null)")
        columns[name] = number
    return columns


def _number(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not -LARGEST_REWARD <= value <= LARGEST_REWARD:
        raise EnvError(f"{what} is {str(value)[:80]!r}, not a finite number within ±{LARGEST_REWARD:g}")
    return float(value)
