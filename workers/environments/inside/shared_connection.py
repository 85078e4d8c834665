"""The wire `proctor.v1`: many sessions of OpenEnv's protocol on one WebSocket, server side.

A binary frame holds one or more messages of any sessions: number of the session, size, and the message exactly as
OpenEnv's own wire has it. The first message with a new number opens a session; numbers are not used again. An empty
message is the end of a session; a size of `TOO_LARGE` without a message replaces an answer that fits no frame.

OpenEnv gives each session a thread, and waking one costs more than a step of a small environment. So the messages of
environments that can run in any thread are answered one after the other in the same thread. If one of them takes long,
the others continue in another thread, and its session uses its own for a while.
"""

import ast
import asyncio
import functools
import inspect
import json
import os
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, MutableMapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

PROTOCOL = "proctor.v1"
"""The WebSocket subprotocol by which a client requests this wire and a server accepts it."""
HEADER = struct.Struct("!II")
MAX_FRAME_BYTES = 8_000_000
TOO_LARGE = 2**32 - 1
FLUSH_MESSAGES = 32
"""Answers that are sent before the rest of a frame has run, so that client and server work at the same time."""
QUICK_SECONDS = 0.005
"""Time that a message may take while others wait for it."""
SLOW_MESSAGES = 16
"""Messages of a session that was slow once which run in its own thread."""
_ANY_THREAD = frozenset((
    "__future__", "abc", "ast", "base64", "bisect", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "difflib", "enum", "fastapi", "fractions", "functools", "hashlib", "heapq", "hmac", "io",
    "itertools", "jinja2", "json", "jsonschema", "logging", "math", "numbers", "numpy", "openenv", "operator", "os",
    "pathlib", "proctor_sandbox", "pydantic", "random", "re", "secrets", "statistics", "string", "struct", "sys",
    "textwrap", "time", "types", "typing", "typing_extensions", "unicodedata", "urllib", "uuid", "uvicorn",
    "warnings", "yaml", "zlib",
))  # fmt: skip
"""Modules without objects that belong to a thread, unlike `sqlite3`, `asyncio` or a browser's driver."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
SharedApp = Callable[[Receive, Send], Awaitable[None]]


def join_messages(messages: Iterable[tuple[int, bytes]], max_bytes: int = MAX_FRAME_BYTES) -> Iterator[bytes]:
    """Yield frames with the messages in their order. A message that fits no frame becomes TOO_LARGE."""
    parts: list[bytes] = []
    size = 0
    for number, message in messages:
        length = len(message)
        if length > max_bytes - HEADER.size:
            message, length = b"", TOO_LARGE
        if size + HEADER.size + len(message) > max_bytes:
            yield b"".join(parts)
            parts, size = [], 0
        parts += HEADER.pack(number, length), message
        size += HEADER.size + len(message)
    if parts:
        yield b"".join(parts)


def split_messages(frame: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield a frame's messages by session; None is one that was too large. Raises ValueError for a broken frame."""
    position, end = 0, len(frame)
    while position < end:
        if end - position < HEADER.size:
            raise ValueError("a frame ends within a header")
        number, length = HEADER.unpack_from(frame, position)
        position += HEADER.size
        if length == TOO_LARGE:
            yield number, None
            continue
        if length > end - position:
            raise ValueError("a message is longer than its frame")
        yield number, frame[position : position + length]
        position += length


def shared_app(app: Any, root: str) -> SharedApp | None:
    """Return what serves the wire for the app of the package at `root`, if that is OpenEnv's own server.

    Environments with coroutines, MCP sessions or one thread for all, other versions of OpenEnv and apps that were
    changed speak only OpenEnv's own wire.
    """
    try:
        import openenv
        from openenv.core.env_server.http_server import HTTPEnvServer
        from openenv.core.env_server.interfaces import Environment
    except ImportError:
        return None
    if not str(getattr(openenv, "__version__", "")).startswith("0.10.") or getattr(app, "user_middleware", True):
        return None
    routes = [route for route in app.routes if getattr(route, "path", None) in {"/ws", "", "/"}]
    endpoint: Any = getattr(routes[0], "endpoint", None) if len(routes) == 1 else None
    if getattr(endpoint, "__qualname__", "") != "HTTPEnvServer.register_routes.<locals>.websocket_endpoint":
        return None
    server: Any = inspect.getclosurevars(endpoint).nonlocals.get("self")
    factory = getattr(server, "_env_factory", None)
    factory = factory.func if isinstance(factory, functools.partial) else factory
    if type(server) is not HTTPEnvServer or not isinstance(factory, type) or not issubclass(factory, Environment):
        return None
    is_async = any(getattr(factory, name) is not getattr(Environment, name) for name in ("reset_async", "step_async"))
    if is_async or hasattr(factory, "mcp_session") or server._shared_session_executor is not None:
        return None

    read_once = functools.lru_cache(runs_in_any_thread)

    async def serve(receive: Receive, send: Send) -> None:
        await SharedConnection(server, send, is_quick=read_once(root)).serve(receive)

    return serve


def runs_in_any_thread(root: str) -> bool:
    """Whether a package imports only its own modules and modules that have nothing to do with threads."""
    for folder, _, names in os.walk(root):
        for path in [os.path.join(folder, name) for name in names if name.endswith(".py")]:
            try:
                with open(path, "rb") as file:
                    tree = ast.parse(file.read())
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                return False
            for node in ast.walk(tree):
                imported: list[str] = []
                if isinstance(node, ast.Import):
                    imported = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported = [node.module or ""]
                elif isinstance(node, ast.Name) and node.id in {"__import__", "eval", "exec"}:
                    return False
                for name in {name.partition(".")[0] for name in imported} - _ANY_THREAD:
                    own = os.path.join(root, name), os.path.join(folder, name)
                    if not any(os.path.isfile(f"{place}.py") or os.path.isdir(place) for place in own):
                        return False
    return True


@dataclass(slots=True, eq=False)
class _Session:
    number: int
    id: str = ""
    environment: Any = None
    reset_parameters: Any = None
    executor: Executor | None = None
    """OpenEnv's thread for it; None while the environment is created."""
    early: list[bytes] = field(default_factory=list)
    """Messages that arrived before that."""
    slow: int = 0
    """Number of further messages that run in its own thread."""
    answering: threading.Lock = field(default_factory=threading.Lock)


class SharedConnection:
    """One WebSocket. Everything runs in the event loop, except for `_work` and what it calls."""

    def __init__(self, server: Any, send: Send, *, is_quick: bool) -> None:
        import pydantic
        from openenv.core.env_server import exceptions, serialization, types

        self._exceptions: Any = exceptions  # of the package's interpreter, so typed nowhere else
        self._serialization: Any = serialization
        self._types: Any = types
        self._validation_error: Any = pydantic.ValidationError
        self._server, self._send, self._is_quick = server, send, is_quick
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[int, _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest = -1
        self._answers: deque[tuple[int, bytes]] = deque()
        self._has_answers = asyncio.Event()
        self._is_woken = False
        """The event loop is about to look for answers."""
        self._workers = ThreadPoolExecutor(256)  # more than one only while messages take long
        self._lock = threading.Lock()
        """Held to change the next three."""
        self._waiting: deque[tuple[_Session, bytes]] = deque()
        """Messages for the thread that works on them, one after the other."""
        self._worker = 0
        """Number of that thread; grows with each that takes over."""
        self._current: _Session | None = None
        """The session that it answers; None: there is no such thread."""
        self._is_watched = False

    async def serve(self, receive: Receive) -> None:
        await receive()  # the request to connect
        await self._send({"type": "websocket.accept", "subprotocol": PROTOCOL})
        writer = asyncio.create_task(self._write())
        try:
            while not writer.done() and (event := await receive())["type"] == "websocket.receive":
                for number, message in split_messages(event.get("bytes") or b""):
                    self._deliver(number, message or b"")
                if self._waiting:
                    self._start_worker(taking_over=False)
        finally:
            writer.cancel()
            self._waiting.clear()
            for session in list(self._sessions.values()):
                self._spawn(self._end(session))
            await asyncio.gather(writer, *self._tasks, return_exceptions=True)
            self._workers.shutdown(wait=False)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _deliver(self, number: int, message: bytes) -> None:
        session = self._sessions.get(number)
        if session is not None and session.executor is not None:
            if self._is_quick and not session.slow:
                self._waiting.append((session, message))
            else:
                session.executor.submit(self._work_alone, session, message)
        elif session is not None:
            session.early.append(message)
        elif number > self._newest:
            self._newest = number
            session = self._sessions[number] = _Session(number, early=[message])
            self._spawn(self._open(session))
        else:  # it has ended
            self._put(number, b"")

    def _put(self, number: int, answer: bytes) -> None:
        self._answers.append((number, answer))
        self._has_answers.set()

    async def _open(self, session: _Session) -> None:
        """Create the session's environment as OpenEnv does."""
        try:
            session.id, session.environment = await self._server._create_session()
        except self._exceptions.SessionCapacityError as error:
            counts = {"active_sessions": error.active_sessions, "max_sessions": error.max_sessions}
            refusal = self._error("CAPACITY_REACHED", error, **counts)
        except self._exceptions.EnvironmentFactoryError as error:
            refusal = self._error("FACTORY_ERROR", error, factory_name=error.factory_name)
        except Exception as error:
            refusal = self._error("SESSION_ERROR", error)
        else:
            session.reset_parameters = inspect.signature(session.environment.reset)
            session.executor = self._server._session_executors[session.id]
            for message in session.early:
                session.executor.submit(self._work_alone, session, message)
            if session.number not in self._sessions:  # the connection was lost in the meantime
                await self._server._destroy_session(session.id)
            return
        self._put(session.number, refusal)
        await self._end(session)

    async def _end(self, session: _Session) -> None:
        """Remove the session after its last message."""
        if self._sessions.pop(session.number, None) is None:
            return
        if session.executor is not None:
            await self._loop.run_in_executor(session.executor, session.answering.acquire)
            await self._server._destroy_session(session.id)
        self._put(session.number, b"")

    def _start_worker(self, *, taking_over: bool) -> None:
        """Have a thread answer the waiting messages, unless there is one already that it does not take over from."""
        with self._lock:
            if not self._waiting or (self._current is not None and not taking_over):
                return
            self._worker += 1
            self._current = self._waiting[0][0]
            self._workers.submit(self._work, self._worker)
        if not self._is_watched:
            self._is_watched = True
            self._loop.call_later(QUICK_SECONDS, self._watch, self._worker, self._current)

    def _watch(self, worker: int, session: _Session | None) -> None:
        """Send the answers so far; let another thread take over from a thread that still answers the same session."""
        self._has_answers.set()
        current = self._current
        if current is not None and current is session and worker == self._worker:
            current.slow = SLOW_MESSAGES
            self._start_worker(taking_over=True)
        self._is_watched = current is not None
        if self._is_watched:
            self._loop.call_later(QUICK_SECONDS, self._watch, self._worker, self._current)

    def _work(self, worker: int) -> None:
        """Answer the waiting messages until there are none or another thread has taken over."""
        while True:
            with self._lock:
                if worker != self._worker:
                    break
                if not self._waiting:
                    self._current = None
                    break
                session, message = self._waiting.popleft()
                self._current = session
            self._work_on(session, message)
            if len(self._answers) >= FLUSH_MESSAGES:
                self._wake()
        self._wake()

    def _work_alone(self, session: _Session, message: bytes) -> None:
        session.slow = max(0, session.slow - 1)
        self._work_on(session, message)
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._has_answers.set)

    def _work_on(self, session: _Session, message: bytes) -> None:
        try:
            with session.answering:
                answer = self._answer(session, message)
        except Exception as error:
            self._answers.append((session.number, self._error("SESSION_ERROR", error)))
            answer = None
        except BaseException as error:  # such as SystemExit, which ends the server as it does with OpenEnv's own wire
            self._loop.call_soon_threadsafe(_raise, error)
            raise
        if answer is not None:
            self._answers.append((session.number, answer))
        else:
            self._loop.call_soon_threadsafe(lambda: self._spawn(self._end(session)))

    def _answer(self, session: _Session, message: bytes) -> bytes | None:
        """Return OpenEnv's answer to a message, None to `close`. Raises what ends a session there."""
        types, serialization = self._types, self._serialization
        try:
            request = json.loads(message)
        except json.JSONDecodeError as error:
            return self._error("INVALID_JSON", f"Invalid JSON: {error}")
        kind, server, environment = request.get("type", ""), self._server, session.environment
        answer: Any
        try:
            match kind:
                case "reset":
                    arguments = types.WSResetMessage(**request).data
                    arguments = server._get_valid_kwargs(session.reset_parameters, arguments)
                    observation = environment.reset(**arguments)
                    server._update_session_activity(session.id)
                    answer = types.WSObservationResponse(data=serialization.serialize_observation(observation))
                case "step":
                    action = serialization.deserialize_action(types.WSStepMessage(**request).data, server.action_cls)
                    observation = environment.step(action)
                    server._update_session_activity(session.id, increment_step=True)
                    answer = types.WSObservationResponse(data=serialization.serialize_observation(observation))
                case "state":
                    types.WSStateMessage(**request)
                    state = environment.state
                    fields = state.model_dump() if hasattr(state, "model_dump") else dict(state) if state else {}
                    answer = types.WSStateResponse(data=fields)
                case "close":
                    types.WSCloseMessage(**request)
                    return None
                case _:
                    return self._error("UNKNOWN_TYPE", f"Unknown message type: {kind}")
            return bytes(answer.model_dump_json(), "utf-8")
        except self._validation_error as error:
            return self._error("VALIDATION_ERROR", "Invalid message", errors=error.errors())
        except Exception as error:
            return self._error("EXECUTION_ERROR", error)

    async def _write(self) -> None:
        answers = self._answers
        while True:
            await self._has_answers.wait()
            self._has_answers.clear()
            self._is_woken = False
            for frame in join_messages([answers.popleft() for _ in range(len(answers))]):
                await self._send({"type": "websocket.send", "bytes": frame})

    def _error(self, code: str, message: object, **more: object) -> bytes:
        answer = self._types.WSErrorResponse(data={"message": str(message), "code": code, **more})
        return bytes(answer.model_dump_json(), "utf-8")


def _raise(error: BaseException) -> None:
    raise error
