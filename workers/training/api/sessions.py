"""Clients of the training API: their models and samplers, the queue of their requests, and the results.

One thread runs the model. Requests about a model run in the order of their numbers; samples with the same weights and
settings share a batch.
"""

import asyncio
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog
from pydantic import ValidationError

from workers.training.api.learner import Learner, Refused, read_shape
from workers.training.api.wire import BadRequest, LoraShape, PassResult, SampleRequest, SampleResult, explain

MAX_BATCH = 64
KEPT_RESULTS = 4096
KEPT_BYTES = 64 << 20
"""Results of a session that can be fetched, also more than once. The oldest are dropped first."""
KEPT_SNAPSHOTS = 8
"""Weights per model that were saved without a name to sample from."""
SWEEP_SECONDS = 2.0
GAP_SECONDS = 30.0
"""How long requests wait for a missing number, which the client never sent or which was refused."""
_MODEL = re.compile(r"[0-9a-f]{32}:train:[0-9]{1,19}")
_PATH = re.compile(
    rf"tinker://(?P<model>{_MODEL.pattern})/(?P<kind>weights|sampler_weights)/(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{{0,99}})"
)

logger = structlog.get_logger(__name__)


class Gone(Exception):
    """The session, model, sampler or result does not exist or has expired."""


class LimitReached(Exception):
    """A limit of the server is reached. The client may try again later."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    sessions: int = 16
    models: int = 8
    """Models of all sessions together."""
    idle_seconds: float = 300.0
    """A session without a request, not even a heartbeat, ends after this."""
    waiting: int = 4096
    """Requests that wait, of all sessions."""
    waiting_bytes: int = 256 << 20
    sampled_tokens: int = 1 << 18
    """Tokens that one request may sample."""
    saved: int = 200
    """Named weights of a model, by kind."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """Weights with a name, as clients list them."""

    model_id: str
    kind: str
    name: str
    size: int
    saved_at: datetime


@dataclass(eq=False)
class Promise:
    """A result that may not be there yet."""

    id: str
    work: Callable[[], object] | None = None
    sample: SampleRequest | None = None
    seed: int = 0
    size: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: object = None
    is_canceled: bool = False

    @property
    def result_bytes(self) -> int:
        match self.result:
            case PassResult(logprobs=logprobs):
                return sum(each.nbytes for each in logprobs)
            case SampleResult(sequences=sequences, prompt_logprobs=prompt):
                return 64 * (sum(len(each.tokens) for each in sequences) + len(prompt or ()))
        return 0


@dataclass(eq=False)
class OrderedRequests:
    """Requests about one model that wait for earlier ones."""

    next_number: int = 1
    waiting: dict[int, Promise] = field(default_factory=dict)
    since: float = 0.0
    """Since when the next one is missing."""


@dataclass(eq=False)
class ClientSession:
    id: str
    seen_at: float
    models: dict[str, OrderedRequests] = field(default_factory=dict)
    samplers: dict[str, Path | None] = field(default_factory=dict)
    """Folders of weights; None for the base."""
    snapshots: dict[str, deque[Path]] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    kept_bytes: int = 0
    limit: Callable[[], None] = lambda: None

    def add_model(self, number: int) -> str:
        model_id = f"{self.id}:train:{number}"
        if model_id not in self.models:
            self.limit()
            self.models[model_id] = OrderedRequests()
        return model_id

    @contextmanager
    def adding(self, model_id: str) -> Iterator[None]:
        """Forget the model again if it cannot be created."""
        try:
            yield
        except BaseException:
            self.models.pop(model_id, None)
            raise

    def add_sampler(self, number: int, folder: Path | None) -> str:
        sampler = f"{self.id}:sample:{number}"
        if sampler not in self.samplers and len(self.samplers) >= KEPT_RESULTS:
            del self.samplers[next(iter(self.samplers))]
        self.samplers[sampler] = folder
        return sampler


class Sessions:
    """All sessions of the server. Its methods are called in the event loop, except where they say otherwise."""

    def __init__(self, learner: Learner, folder: Path, limits: SessionLimits) -> None:
        self.learner, self.folder, self.limits = learner, folder, limits
        self.batches = 0
        self._sessions: dict[str, ClientSession] = {}
        self._queue: deque[Promise] = deque()
        self._unfinished: dict[Promise, ClientSession] = {}
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="training")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._sweep())]

    async def close(self) -> None:
        for promise in self._unfinished:
            promise.is_canceled = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        for session in self._sessions.values():
            self._delete_snapshots(session)

    def open(self) -> ClientSession:
        if len(self._sessions) >= self.limits.sessions:
            raise LimitReached(f"{self.limits.sessions} sessions are open. Try again when one has ended.")
        session = ClientSession(secrets.token_hex(16), time.monotonic(), limit=self._limit_models)
        self._sessions[session.id] = session
        return session

    def get(self, session_id: str) -> ClientSession:
        if (session := self._sessions.get(session_id.partition(":")[0])) is None:
            raise Gone("The session does not exist or has expired.")
        session.seen_at = time.monotonic()
        return session

    def of_model(self, model_id: str) -> ClientSession:
        session = self.get(model_id)
        if model_id not in session.models:
            raise Gone("The model does not exist or was unloaded.")
        return session

    def of_sampler(self, sampler: str) -> ClientSession:
        session = self.get(sampler)
        if sampler not in session.samplers:
            raise Gone("The sampling session does not exist or has expired.")
        return session

    def promise(self, request_id: str) -> Promise:
        if (promise := self.get(request_id).promises.get(request_id)) is None:
            raise Gone("The request is unknown, or its result is no longer kept.")
        return promise

    def folder_of(self, path: str) -> Path:
        """The folder of saved weights. Raises Refused."""
        if (match := _PATH.fullmatch(path)) is None:
            raise BadRequest("a path has the form tinker://MODEL/weights/NAME or tinker://MODEL/sampler_weights/NAME")
        folder = self.folder / match["model"].replace(":", "-") / match["kind"] / match["name"]
        read_shape(folder)
        return folder

    def saved_weights(self, model_id: str) -> list[SavedWeights]:
        """The named weights of a model, of this or an earlier session, oldest first."""
        if not _MODEL.fullmatch(model_id):
            raise BadRequest("this is no id of a model")
        found = []
        for kind in ("weights", "sampler_weights"):
            for folder in (self.folder / model_id.replace(":", "-") / kind).glob("[A-Za-z0-9]*"):
                size = sum(path.stat().st_size for path in folder.iterdir())
                saved_at = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
                found.append(SavedWeights(model_id, kind, folder.name, size, saved_at))
        return sorted(found, key=lambda each: each.saved_at)

    async def delete_weights(self, path: str) -> None:
        folder = self.folder_of(path)

        def delete() -> None:
            self.learner.detach(folder)
            shutil.rmtree(folder, ignore_errors=True)

        await asyncio.get_running_loop().run_in_executor(self._thread, delete)

    def shape_of(self, path: str) -> LoraShape:
        return read_shape(self.folder_of(path))

    def new_folder(self, model_id: str, kind: str, name: str, *, may_replace: bool) -> Path:
        """The folder for named weights. Called in the model's thread."""
        parent = self.folder / model_id.replace(":", "-") / kind
        if (parent / name).exists():
            if not may_replace:
                raise Refused(f"{name} exists already; pass overwrite to replace it")
        elif parent.is_dir() and sum(1 for _ in parent.iterdir()) >= self.limits.saved:
            raise Refused(f"this model has {self.limits.saved} saved weights, which is the limit")
        return parent / name

    def temporary_folder(self, session: ClientSession, model_id: str) -> Path:
        """A folder for weights without a name; the model's oldest ones are deleted. Called in the model's thread."""
        kept = session.snapshots.setdefault(model_id, deque())
        while len(kept) >= KEPT_SNAPSHOTS:
            oldest = kept.popleft()
            for name in [name for name, folder in list(session.samplers.items()) if folder == oldest]:
                session.samplers.pop(name, None)
            self.learner.detach(oldest)
            shutil.rmtree(oldest, ignore_errors=True)
        kept.append(self.folder / ".temporary" / secrets.token_hex(16))
        return kept[-1]

    def submit(self, session: ClientSession, request_id: str, work: Callable[[], object]) -> None:
        """Run work for a client. The same request again is the same result."""
        if request_id not in session.promises:
            self._add(session, Promise(request_id, work))

    def submit_in_order(
        self, session: ClientSession, model_id: str, number: int | None, work: Callable[[], object], size: int = 0
    ) -> str:
        """Run work after all requests of the model with lower numbers. Returns the id of the request."""
        order = session.models[model_id]
        request_id = f"{model_id}:{secrets.token_hex(8) if number is None else number}"
        if request_id in session.promises:
            return request_id
        if number is not None and number < order.next_number:
            raise Gone("The result of this request is no longer kept.")
        promise = Promise(request_id, work, size=size)
        self._add(session, promise, is_ready=number is None)
        if number is not None:
            order.since = order.since or time.monotonic()
            order.waiting[number] = promise
            self._release(order)
        return request_id

    def sample(self, session: ClientSession, request: SampleRequest) -> str:
        request_id = f"{request.sampling_session_id}:{request.seq_id}"
        if request_id in session.promises:
            return request_id
        room = self.learner.context - len(request.prompt.tokens)
        tokens = request.num_samples * min(request.sampling_params.max_tokens or room, room)
        if tokens > self.limits.sampled_tokens:
            raise Refused(f"{tokens:,} tokens would be sampled; at most {self.limits.sampled_tokens:,} are allowed")
        seed = request.sampling_params.seed
        seed = secrets.randbits(62) if seed is None else seed & (2**63 - 1)
        self._add(session, Promise(request_id, sample=request, seed=seed, size=8 * len(request.prompt.tokens)))
        return request_id

    def cancel(self, request_id: str) -> None:
        """Drop a request that has not begun, or end its samples at the next token."""
        self.promise(request_id).is_canceled = True

    def unload(self, session: ClientSession, model_id: str) -> str:
        """Forget a model and the requests that wait for it. Returns the id of the request."""
        order, request_id = session.models.pop(model_id), f"{model_id}:unload"
        for promise in order.waiting.values():
            self._finish(promise, _failure("the model was unloaded", "user"))

        def unload() -> object:
            self.learner.remove(model_id)
            return {"type": "unload_model", "model_id": model_id}

        self.submit(session, request_id, unload)
        return request_id

    def _add(self, session: ClientSession, promise: Promise, *, is_ready: bool = True) -> None:
        if len(self._unfinished) >= self.limits.waiting or len(session.promises) >= 2 * KEPT_RESULTS:
            raise LimitReached("Too many requests are waiting. Try again later.")
        if self._waiting_bytes + promise.size > self.limits.waiting_bytes:
            raise LimitReached("The waiting requests are too large. Try again later.")
        self._waiting_bytes += promise.size
        self._unfinished[promise] = session
        session.promises[promise.id] = promise
        if is_ready:
            self._queue.append(promise)
            self._wake.set()

    def _finish(self, promise: Promise, result: object) -> None:
        if (session := self._unfinished.pop(promise, None)) is None:
            return
        self._waiting_bytes -= promise.size
        promise.result, promise.work, promise.sample = result, None, None
        promise.done.set()
        session.kept_bytes += promise.result_bytes
        while len(session.promises) > KEPT_RESULTS or session.kept_bytes > KEPT_BYTES:
            oldest = next((each for each in session.promises.values() if each.done.is_set()), promise)
            if oldest is promise:
                break
            session.kept_bytes -= oldest.result_bytes
            del session.promises[oldest.id]

    def _release(self, order: OrderedRequests) -> None:
        """Queue the requests whose turn it is."""
        while (promise := order.waiting.pop(order.next_number, None)) is not None:
            self._queue.append(promise)
            order.next_number += 1
            order.since = time.monotonic()
        self._wake.set()
        if not order.waiting:
            order.since = 0.0

    def _limit_models(self) -> None:
        if sum(len(session.models) for session in self._sessions.values()) >= self.limits.models:
            raise LimitReached(f"{self.limits.models} models are loaded. Try again when a session has ended.")

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            batch = self._next_batch()
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._run, batch)
            self.batches += 1
            for promise, result in zip(batch, results, strict=True):
                self._finish(promise, result)

    def _next_batch(self) -> list[Promise]:
        """The oldest request; if it is a sample, with others that can be sampled together."""
        first = self._queue.popleft()
        if first.sample is None:
            return [first]
        batch, rows = [first], first.sample.num_samples
        for promise in list(self._queue):
            other = promise.sample
            if other is None or _batch_key(other) != _batch_key(first.sample):
                continue
            if rows + other.num_samples > MAX_BATCH:
                break
            batch.append(promise)
            rows += other.num_samples
        for promise in batch[1:]:
            self._queue.remove(promise)
        return batch

    def _run(self, batch: Sequence[Promise]) -> Sequence[object]:
        """Results for a batch. Called in the model's thread."""
        try:
            if (work := batch[0].work) is not None:
                return [_failure("the request was canceled", "user") if batch[0].is_canceled else work()]
            wanted = [(each, own) for each in batch if not each.is_canceled and (own := each.sample) is not None]
            results: dict[Promise, SampleResult] = {}
            if wanted:
                folder = self._sampler_folder(wanted[0][1].sampling_session_id)
                samples, seeds = [sample for _, sample in wanted], [each.seed for each, _ in wanted]
                sampled = self.learner.sample(folder, samples, seeds, lambda place: wanted[place][0].is_canceled)
                results = {each: result for (each, _), result in zip(wanted, sampled, strict=True)}
            return [results.get(each, _failure("the request was canceled", "user")) for each in batch]
        except ValidationError as error:
            return [_failure(explain(error), "user")] * len(batch)
        except (Refused, BadRequest, Gone) as error:
            return [_failure(str(error), "user")] * len(batch)
        except Exception:
            logger.exception("request failed")
            return [_failure("the request failed on the server; see its log", "server")] * len(batch)

    def _sampler_folder(self, sampler: str) -> Path | None:
        session = self._sessions.get(sampler.partition(":")[0])
        if session is None or sampler not in session.samplers:
            raise Gone("The sampling session does not exist or has expired.")
        return session.samplers[sampler]

    async def _sweep(self) -> None:
        """End idle sessions, and stop waiting for numbers that do not come."""
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self.limits.idle_seconds / 2))
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if now - session.seen_at > self.limits.idle_seconds:
                    await self._end(session)
                    continue
                for order in session.models.values():
                    if order.waiting and now - order.since > GAP_SECONDS:
                        order.next_number = min(order.waiting)
                        self._release(order)

    async def end(self, session_id: str) -> None:
        """End a session that its client no longer needs; nothing happens if it has ended."""
        if (session := self._sessions.get(session_id)) is not None:
            await self._end(session)

    async def _end(self, session: ClientSession) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        gone = set(session.promises.values())
        self._queue = deque(promise for promise in self._queue if promise not in gone)
        for promise in gone:
            promise.is_canceled = True
            self._finish(promise, _failure("the session has expired", "user"))

        def remove() -> None:
            for model_id in session.models:
                self.learner.remove(model_id)
            self._delete_snapshots(session)

        await asyncio.get_running_loop().run_in_executor(self._thread, remove)

    def _delete_snapshots(self, session: ClientSession) -> None:
        for folder in (folder for kept in session.snapshots.values() for folder in kept):
            self.learner.detach(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _batch_key(request: SampleRequest) -> tuple[object, ...]:
    params = request.sampling_params
    return request.sampling_session_id, params.temperature, params.top_k, params.top_p, params.stop == []


def _failure(message: str, category: str) -> dict[str, object]:
    return {"error": message, "category": category}
