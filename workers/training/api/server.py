"""Serve the training API: `python -m workers.training.api.server`.

The request comes as JSON on standard input (`{base, name, host, port, token, folder}`), so that no list of processes
shows the token. One line of JSON on standard output contains the port, or the reason for a failure.
"""

import asyncio
import hmac
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import structlog
import torch
from aiohttp import web
from peft import PeftModel
from pydantic import ValidationError
from transformers.utils.logging import disable_progress_bar

from backend.core.logs import configure_logging
from backend.domain.training.adapter import AdapterChoice, AdapterKind
from workers.http_server import listen, report, wait_until_stopped
from workers.models.chat import ChatUnusable
from workers.models.load import ModelUnusable, find_folder, is_adapter, start_from_base
from workers.training.api.learner import Learner, Refused
from workers.training.api.sessions import ClientSession, Gone, LimitReached, SessionLimits, Sessions
from workers.training.api.wire import (
    BadRequest,
    CreateModel,
    CreateSamplingSession,
    JsonPass,
    LoadWeights,
    OfModel,
    OptimStep,
    PassRequest,
    PassResult,
    SampleRequest,
    SampleResult,
    SaveWeights,
    explain,
    read_pass,
)

SMALL = 20_000_000  # parameters below which one thread is fastest
POLL_SECONDS = 20.0
READ_SECONDS = 60.0
MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_JSON_BYTES = 8 * 1024 * 1024
CHUNK_BYTES = 4_000_000
"""Clients divide larger passes into several requests."""
PROTO = "application/x-protobuf"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = structlog.get_logger(__name__)


class TrainingApi:
    """The routes of the training API over one base model."""

    def __init__(
        self,
        learner: Learner,
        name: str,
        token: str,
        folder: Path,
        *,
        limits: SessionLimits | None = None,
        tokenizer: str = "",
    ) -> None:
        self.name, self.tokenizer = name, tokenizer
        self.sessions = Sessions(learner, folder, limits or SessionLimits())
        self._token = token
        self._reading = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        plain = {
            "client/config": self._client_config,
            "client/dynamic_config": self._dynamic_config,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "create_model": self._create_model,
            "get_info": self._get_info,
            "unload_model": self._unload_model,
            "load_weights": self._load_weights,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "weights_info": self._weights_info,
            "optim_step": self._optim_step,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
            "cancel_future": self._cancel,
        }
        for path, handle in plain.items():
            app.router.add_post(f"/api/v1/{path}", self._json(handle))
        app.router.add_post("/api/v1/forward_backward", self._forward_backward)
        app.router.add_post("/api/v1/forward", self._forward_backward)
        app.router.add_post("/api/v1/telemetry", self._ignore_telemetry)
        app.router.add_get("/api/v1/healthz", self._health)
        app.router.add_get("/api/v1/get_server_capabilities", self._capabilities)
        app.router.add_get("/api/v1/samplers/{sampler}", self._sampler)
        app.router.add_post("/api/v1/sessions/{session}/finish", self._finish)
        app.router.add_get("/api/v1/training_runs/{model}/checkpoints", self._list_weights)
        app.router.add_delete("/api/v1/training_runs/{model}/checkpoints/{kind}/{name}", self._delete_weights)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token before anything is read, and return every error as `{"detail": …}`."""
        sent = request.headers.get("X-API-Key", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(sent, self._token.encode()):
            return _refuse(401, "The API key is missing or wrong: set TINKER_API_KEY to the server's token.")
        try:
            return await handler(request)
        except ValidationError as error:
            return _refuse(422, explain(error))
        except (BadRequest, Refused) as error:
            return _refuse(422, str(error))
        except Gone as error:
            return _refuse(410, str(error))
        except LimitReached as error:
            return _refuse(429, str(error))
        except web.HTTPException as error:
            return _refuse(error.status, error.reason)

    def _json(self, handle: Callable[[dict[str, object], web.Request], Awaitable[object]]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                body = orjson.loads(await self._read(request, MAX_JSON_BYTES))
            except orjson.JSONDecodeError as error:
                raise BadRequest(f"the body is not JSON: {error}") from error
            if not isinstance(body, dict):
                raise BadRequest("the body is not a JSON object")
            result = await handle(body, request)
            return result if isinstance(result, web.StreamResponse) else _respond(result)

        return answer

    async def _read(self, request: web.Request, limit: int) -> bytes:
        """Read a body whose size is stated and within the limit, while not too many others are being read."""
        size = request.content_length
        if size is None:
            raise web.HTTPLengthRequired(reason="Content-Length is required")
        if size > limit:
            message = f"the body has {size:,} bytes; at most {limit:,} are allowed"
            raise web.HTTPRequestEntityTooLarge(limit, size, reason=message)
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise web.HTTPUnsupportedMediaType(reason="compressed bodies are not supported")
        if self._reading + size > self.sessions.limits.waiting_bytes:
            raise LimitReached("Too many requests are being read. Try again.")
        self._reading += size
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(reason="the body did not arrive in time") from None
        finally:
            self._reading -= size

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return _respond({"status": "ok"})

    async def _capabilities(self, _: web.Request) -> web.StreamResponse:
        model = {"model_name": self.name, "max_context_length": self.sessions.learner.context}
        return _respond({"supported_models": [{**model, "trainable": True, "sampleable": True}]})

    async def _ignore_telemetry(self, _: web.Request) -> web.StreamResponse:
        return _respond({"status": "accepted"})  # the body is not read

    async def _client_config(self, _: dict[str, object], __: web.Request) -> object:
        return {
            "pjwt_auth_enabled": False,
            "parallel_fwdbwd_chunks": True,
            "proto_compress_fwdbwd": False,
            "fwdbwd_max_chunk_len": 1024,
            "fwdbwd_max_chunk_bytes_count": CHUNK_BYTES,
            "sample_max_concurrent_requests": 256,
            "sample_enable_stuck_detection": False,
            "use_pyqwest_transport": False,
        }

    async def _dynamic_config(self, _: dict[str, object], __: web.Request) -> object:
        return {"refresh_interval_sec": 3600, "sample_cancel_enabled": True}

    async def _create_session(self, _: dict[str, object], __: web.Request) -> object:
        session = self.sessions.open()
        warning = None
        if not self.sessions.learner.has_output_layer:
            warning = "This base uses its input embeddings as its output: train_unembed has no effect."
        return {"type": "create_session", "session_id": session.id, "warning_message": warning}

    async def _heartbeat(self, body: dict[str, object], _: web.Request) -> object:
        self.sessions.get(str(body.get("session_id")))
        return {"type": "session_heartbeat"}

    async def _create_model(self, body: dict[str, object], _: web.Request) -> object:
        given = CreateModel.model_validate(body)
        self._check_base(given.base_model)
        session = self.sessions.get(given.session_id)
        model_id = session.add_model(given.model_seq_id)

        def create() -> object:
            with session.adding(model_id):
                self.sessions.learner.create(model_id, given.lora_config)
            return {"type": "create_model", "model_id": model_id}

        return self._promise(session, f"{model_id}:create", create, model_id)

    async def _get_info(self, body: dict[str, object], _: web.Request) -> object:
        model_id = OfModel.model_validate(body).model_id
        self.sessions.of_model(model_id)
        model = self.sessions.learner.models.get(model_id)
        if model is None:
            raise web.HTTPNotFound(reason="the model has not been created yet")
        data = {"arch": "lora", "model_name": self.name, "tokenizer_id": self.tokenizer or None}
        described = {"type": "get_info", "model_data": data, "model_id": model_id, "model_name": self.name}
        return {**described, "is_lora": True, "lora_rank": model.shape.rank}

    async def _unload_model(self, body: dict[str, object], __: web.Request) -> object:
        model_id, _ = _addressed(body)
        request_id = self.sessions.unload(self.sessions.of_model(model_id), model_id)
        return {"request_id": request_id, "model_id": model_id}

    async def _load_weights(self, body: dict[str, object], _: web.Request) -> object:
        given = LoadWeights.model_validate(body)
        if given.base_model is not None:
            self._check_base(given.base_model)
        folder = self.sessions.folder_of(given.path)
        if given.model_id is not None:
            session, model_id = self.sessions.of_model(given.model_id), given.model_id
        elif given.session_id is not None and given.model_seq_id is not None:
            session = self.sessions.get(given.session_id)
            model_id = session.add_model(given.model_seq_id)
        else:
            raise BadRequest("give model_id, or session_id and model_seq_id")

        def load() -> object:
            self.sessions.learner.load(model_id, folder, with_optimizer=given.optimizer)
            return {"type": "load_weights", "path": given.path, "model_id": model_id}

        def create() -> object:
            with session.adding(model_id):
                return load()

        if given.model_id is None:
            return self._promise(session, f"{model_id}:create", create, model_id)
        return self._in_order(session, model_id, given.seq_id, load)

    async def _save_weights(self, body: dict[str, object], _: web.Request) -> object:
        model_id, seq_id = _addressed(body)

        def save() -> object:
            given = SaveWeights.model_validate(body)
            name = given.path or f"{seq_id or 0:06d}"
            folder = self.sessions.new_folder(model_id, "weights", name, may_replace=given.overwrite)
            self.sessions.learner.save(model_id, folder, with_optimizer=True)
            return {"type": "save_weights", "path": f"tinker://{model_id}/weights/{name}"}

        return self._in_order(self.sessions.of_model(model_id), model_id, seq_id, save)

    async def _save_for_sampler(self, body: dict[str, object], _: web.Request) -> object:
        model_id, seq_id = _addressed(body)
        session, learner = self.sessions.of_model(model_id), self.sessions.learner

        def save() -> object:
            given = SaveWeights.model_validate(body)
            if given.path is not None:
                folder = self.sessions.new_folder(model_id, "sampler_weights", given.path, may_replace=True)
                learner.save(model_id, folder)
                path = f"tinker://{model_id}/sampler_weights/{given.path}"
                return {"type": "save_weights_for_sampler", "path": path}
            if given.sampling_session_seq_id is None:
                raise BadRequest("give path or sampling_session_seq_id")
            folder = self.sessions.temporary_folder(session, model_id)
            learner.save(model_id, folder, is_temporary=True)
            sampler = session.add_sampler(given.sampling_session_seq_id, folder)
            return {"type": "save_weights_for_sampler", "sampling_session_id": sampler}

        return self._in_order(session, model_id, seq_id, save)

    async def _weights_info(self, body: dict[str, object], _: web.Request) -> object:
        shape = self.sessions.shape_of(str(body.get("tinker_path")))
        return {"base_model": self.name, "is_lora": True, "lora_rank": shape.rank, **shape.model_dump(exclude={"rank"})}

    async def _optim_step(self, body: dict[str, object], _: web.Request) -> object:
        model_id, seq_id = _addressed(body)
        session = self.sessions.of_model(model_id)

        def step() -> object:
            given = OptimStep.model_validate(body)
            return {"metrics": self.sessions.learner.step(model_id, given.adam_params)}

        return self._in_order(session, model_id, seq_id, step)

    async def _forward_backward(self, request: web.Request) -> web.StreamResponse:
        is_proto = request.content_type == PROTO
        body = await self._read(request, MAX_BODY_BYTES if is_proto else MAX_JSON_BYTES)
        given: PassRequest
        if is_proto:
            given = await asyncio.to_thread(read_pass, body)
        else:
            parsed = await asyncio.to_thread(JsonPass.model_validate_json, body)
            given = parsed.request(is_forward_only=request.path.endswith("/forward"))
        session = self.sessions.of_model(given.model_id)

        def run() -> object:
            return self.sessions.learner.run_pass(given)

        return _respond(self._in_order(session, given.model_id, given.seq_id, run, size=len(body)))

    async def _create_sampling_session(self, body: dict[str, object], _: web.Request) -> object:
        given = CreateSamplingSession.model_validate(body)
        session = self.sessions.get(given.session_id)
        folder = self.sessions.folder_of(given.model_path) if given.model_path else None
        if folder is None:
            self._check_base(given.base_model or "")
        sampler = session.add_sampler(given.sampling_session_seq_id, folder)
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    async def _sampler(self, request: web.Request) -> web.StreamResponse:
        sampler = request.match_info["sampler"]
        self.sessions.of_sampler(sampler)
        return _respond({"sampler_id": sampler, "base_model": self.name})

    async def _finish(self, request: web.Request) -> web.StreamResponse:
        """End a session that its client has closed. The reason that it states is not read."""
        await self.sessions.end(request.match_info["session"])
        return web.Response(status=204)

    async def _list_weights(self, request: web.Request) -> web.StreamResponse:
        kinds = {"weights": "training", "sampler_weights": "sampler"}
        saved = await asyncio.to_thread(self.sessions.saved_weights, request.match_info["model"])
        listed = [
            {
                "checkpoint_id": f"{each.kind}/{each.name}",
                "checkpoint_type": kinds[each.kind],
                "time": each.saved_at.isoformat(),
                "tinker_path": f"tinker://{each.model_id}/{each.kind}/{each.name}",
                "size_bytes": each.size,
            }
            for each in saved
        ]
        return _respond({"checkpoints": listed})

    async def _delete_weights(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        await self.sessions.delete_weights(f"tinker://{names['model']}/{names['kind']}/{names['name']}")
        return web.Response(status=204)

    async def _sample(self, body: dict[str, object], _: web.Request) -> object:
        given = SampleRequest.model_validate(body)
        session = self.sessions.of_sampler(given.sampling_session_id)
        self.sessions.learner.check_sample(given)
        request_id = self.sessions.sample(session, given)
        ids = [f"{request_id}:{place}" for place in range(given.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    async def _cancel(self, body: dict[str, object], _: web.Request) -> object:
        self.sessions.cancel(str(body.get("request_id")))
        return web.Response(status=204)

    async def _retrieve(self, body: dict[str, object], request: web.Request) -> object:
        """Wait for a result for a while; 408 means that it is not there yet."""
        promise = self.sessions.promise(str(body.get("request_id")))
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await promise.done.wait()
        except TimeoutError:
            waiting = {"type": "try_again", "request_id": promise.id, "queue_state": "active"}
            return _respond(waiting, status=408)
        result = promise.result
        if isinstance(result, PassResult | SampleResult):
            if PROTO in request.headers.get("Accept", ""):
                return web.Response(body=result.as_proto(), content_type=PROTO)
            return result.as_json()
        return result

    def _check_base(self, name: str) -> None:
        if name != self.name:
            raise web.HTTPNotFound(reason=f"this server has the base {self.name}, and no other"[:200])

    def _promise(
        self, session: ClientSession, request_id: str, work: Callable[[], object], model_id: str
    ) -> dict[str, object]:
        self.sessions.submit(session, request_id, work)
        return {"request_id": request_id, "model_id": model_id}

    def _in_order(
        self, session: ClientSession, model_id: str, seq_id: int | None, work: Callable[[], object], size: int = 0
    ) -> dict[str, object]:
        request_id = self.sessions.submit_in_order(session, model_id, seq_id, work, size)
        return {"request_id": request_id, "model_id": model_id}


def _addressed(body: dict[str, object]) -> tuple[str, int | None]:
    """The model and number of a request, whose other fields are checked in its turn."""
    given = OfModel.model_validate(body)
    return given.model_id, given.seq_id


def _respond(value: object, *, status: int = 200) -> web.StreamResponse:
    return web.Response(body=orjson.dumps(value), content_type="application/json", status=status)


def _refuse(status: int, message: str) -> web.StreamResponse:
    return _respond({"detail": message}, status=status)


def load_learner(base: str) -> Learner:
    """Load a base with an unused adapter, next to which those of clients are added. Raises ModelUnusable."""
    if is_adapter(find_folder(base)):
        raise ModelUnusable("an adapter cannot be the base: merge it first (`proctor export CHECKPOINT merged`)")
    model, tokenizer = start_from_base(base, AdapterChoice(kind=AdapterKind.LORA, rank=1), seed=0)
    assert isinstance(model, PeftModel)
    return Learner(model, tokenizer)


def main() -> int:
    configure_logging("train-api")
    disable_progress_bar()
    request = json.loads(sys.stdin.read())
    try:
        learner = load_learner(request["base"])
    except (ModelUnusable, ChatUnusable) as error:
        report(error=str(error))
        return 1
    if learner.model.num_parameters() < SMALL:
        torch.set_num_threads(1)  # several threads slow each other down
    given = request["folder"]
    folder = Path(given) if given else Path(tempfile.mkdtemp(prefix="proctor-train-api-"))
    try:
        api = TrainingApi(learner, request["name"], request["token"], folder, tokenizer=request["tokenizer"])
        return asyncio.run(_serve(api, request["host"], request["port"]))
    finally:
        if not given:
            shutil.rmtree(folder, ignore_errors=True)


async def _serve(api: TrainingApi, host: str, port: int) -> int:
    runner = await listen(api.app(), host, port)
    if runner is None:
        return 1
    api.sessions.start()
    report(port=runner.addresses[0][1], model=api.name, context=api.sessions.learner.context)
    await wait_until_stopped()
    await runner.cleanup()
    await api.sessions.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
