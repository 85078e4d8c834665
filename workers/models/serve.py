"""Serve a folder of weights as an OpenAI-compatible endpoint: `python -m workers.models.serve`.

The request comes as JSON on standard input (`{folder, name, host, port, token}`), so that no list of processes shows
the token. One line of JSON on standard output contains the port, or the reason for a failure.
"""

import asyncio
import hmac
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import orjson
import torch
from aiohttp import web
from pydantic import BaseModel, Field, ValidationError, model_validator
from transformers.utils.logging import disable_progress_bar

from backend.core.logs import configure_logging
from workers.http_server import listen, report, wait_until_stopped
from workers.models.chat import ChatTokens, ChatUnusable
from workers.models.load import ModelUnusable, load_folder
from workers.models.serving_batches import BatchSampler, ServedCompletion

SMALL = 20_000_000  # parameters below which one thread is fastest
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_WAITING = 1024
MAX_STOPS = 16
MAX_CHOICES = 16
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_UNSUPPORTED = {
    "tools": "this model makes no tool calls; describe the tools in the system message",
    "functions": "this model makes no tool calls; describe the tools in the system message",
    "logit_bias": "logit_bias is not supported",
    "presence_penalty": "presence_penalty is not supported",
    "frequency_penalty": "frequency_penalty is not supported",
    "top_logprobs": "only the log-probabilities of the sampled tokens are available: remove top_logprobs",
}


class ApiError(Exception):
    """An error in OpenAI's format."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, object]] | None = None

    def plain(self) -> dict[str, str]:
        """The message for a chat template. `tool` results become user messages, because few templates know them."""
        role = {"developer": "system", "tool": "user"}.get(self.role, self.role)
        if not isinstance(self.content, list):
            return {"role": role, "content": self.content or ""}
        if any(part.get("type") != "text" for part in self.content):
            raise ApiError("this model reads only text", param="messages", code="unsupported_content")
        return {"role": role, "content": "".join(str(part.get("text", "")) for part in self.content)}


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. Unknown fields are ignored; unsupported ones that would change the reply
    are refused."""

    model: str = ""
    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: float = Field(default=1.0, ge=0, le=5, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    stop: str | list[str] | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, values: object) -> object:
        if not isinstance(values, dict):
            raise ApiError("the body is not a JSON object")
        for name, reason in _UNSUPPORTED.items():
            if values.get(name):
                raise ApiError(reason, param=name, code="unsupported_parameter")
        form = values.get("response_format")
        if isinstance(form, dict) and form.get("type", "text") != "text":
            raise ApiError("only plain text is supported", param="response_format", code="unsupported_parameter")
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class ModelServer:
    """The routes `/v1/models`, `/v1/chat/completions` and `/health` over one local model."""

    batches: BatchSampler
    name: str
    token: str = field(default="", repr=False)
    started: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token, and return every error in OpenAI's format."""
        if request.path == "/health":
            return web.json_response({"status": "ok"})
        try:
            sent = request.headers.get("Authorization", "").removeprefix("Bearer ").encode(errors="surrogateescape")
            if self.token and not hmac.compare_digest(sent, self.token.encode()):
                raise ApiError("Incorrect API key provided.", status=401, code="invalid_api_key")
            return await handler(request)
        except ApiError as error:
            refusal = error
        except web.HTTPException as error:
            refusal = ApiError(error.reason, status=error.status)
        kind = "invalid_request_error" if refusal.status < 500 and refusal.status != 429 else "server_error"
        described = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
        return web.json_response({"error": described}, status=refusal.status)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        """List the one model, or describe it by name."""
        self._check_name(request.match_info.get("name", ""))
        model = {"id": self.name, "object": "model", "created": self.started, "owned_by": "proctor"}
        model["max_model_len"] = self.batches.context
        return web.json_response(model if "name" in request.match_info else {"object": "list", "data": [model]})

    def _check_name(self, name: str) -> None:
        if name and name != self.name:
            message = f"The model {name!r} does not exist; this endpoint serves {self.name!r}."
            raise ApiError(message, status=404, param="model", code="model_not_found")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            chat_request = ChatRequest.model_validate(orjson.loads(await request.read()))
        except orjson.JSONDecodeError as error:
            raise ApiError(f"the body is not JSON: {error}") from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ApiError(f"{field}: {first['msg']}", param=field or None) from error
        given = [chat_request.stop] if isinstance(chat_request.stop, str) else chat_request.stop or []
        stops = [each for each in given if each]
        if len(stops) > MAX_STOPS:
            raise ApiError(f"at most {MAX_STOPS} stop sequences are supported", param="stop")
        if chat_request.messages[-1].role == "assistant":
            raise ApiError("the last message is from the assistant; end with a user message", param="messages")
        self._check_name(chat_request.model)
        if len(self.batches.waiting) + chat_request.n > MAX_WAITING:
            raise ApiError("Too many requests are waiting.", status=429, code="rate_limit_exceeded")
        messages = [message.plain() for message in chat_request.messages]
        try:
            prompt = await self.batches.in_thread(lambda: prompt_tokens(self.batches.chat, messages))
        except Exception as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise ApiError(message, param="messages") from error
        room = self.batches.context - len(prompt) - 1
        if room < 1:
            raise ApiError(
                f"This model's maximum context length is {self.batches.context:,} tokens; your messages have "
                f"{len(prompt):,}, which leaves no room for a reply.",
                param="messages",
                code="context_length_exceeded",
            )
        # a limit beyond the context is lowered to it; the reply is then cut with the finish reason `length`
        limit = min(chat_request.max_completion_tokens or chat_request.max_tokens or room, room)
        seed = secrets.randbits(62) if chat_request.seed is None else chat_request.seed & (2**63 - 1)
        sampling = chat_request.temperature, chat_request.top_p
        choices = [
            ServedCompletion(index, prompt, limit, seed + index, sampling, stops) for index in range(chat_request.n)
        ]
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": self.name}
        if chat_request.stream:
            return await self._stream(request, chat_request, choices, head)
        await asyncio.gather(*(self.batches.sample(choice) for choice in choices))
        described = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice) if chat_request.logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        return web.json_response(
            {**head, "object": "chat.completion", "choices": described, "usage": usage_of(choices)}
        )

    async def _stream(
        self,
        request: web.Request,
        chat_request: ChatRequest,
        choices: Sequence[ServedCompletion],
        head: Mapping[str, object],
    ) -> web.StreamResponse:
        """Stream server-sent events. A client that disconnects ends its rows. Log-probabilities come at the end."""
        pieces: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for choice in choices:  # called in the sampling thread
            choice.on_text = lambda index, text: loop.call_soon_threadsafe(pieces.put_nowait, (index, text))
        work = asyncio.gather(*(self.batches.sample(choice) for choice in choices))
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(described: Sequence[Mapping[str, object]], **more: object) -> None:
            chunk = {**head, "object": "chat.completion.chunk", "choices": described, **more}
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")

        try:
            await response.prepare(request)
            for choice in choices:
                delta = {"role": "assistant", "content": ""}
                await send([{"index": choice.index, "delta": delta, "finish_reason": None}])
            while (piece := await pieces.get()) is not None:
                await send([{"index": piece[0], "delta": {"content": piece[1]}, "finish_reason": None}])
            await work
            for choice in choices:
                logprobs = self._logprobs(choice) if chat_request.logprobs else None
                end = {"delta": {}, "finish_reason": choice.finish_reason, "logprobs": logprobs}
                await send([{"index": choice.index, **end}])
            if chat_request.stream_options and chat_request.stream_options.include_usage:
                await send([], usage=usage_of(choices))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        finally:
            for choice in choices:
                choice.is_abandoned = True
            work.cancel()
        return response

    def _logprobs(self, choice: ServedCompletion) -> dict[str, object]:
        content = []
        for token, logprob in zip(choice.tokens, choice.logprobs, strict=True):
            if token != self.batches.chat.end:
                text = self.batches.chat.text_of([token])
                encoded = list(text.encode("utf-8", "replace"))
                content.append({"token": text, "logprob": logprob, "bytes": encoded, "top_logprobs": []})
        return {"content": content, "refusal": None}


def prompt_tokens(chat: ChatTokens, messages: Sequence[dict[str, str]]) -> list[int]:
    """The prompt as the local policy reads it: the opening, then each reply with its end and the messages after it."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[0] == 0:
        return list(chat.opening(messages))
    tokens = list(chat.opening(messages[: turns[0]]))
    for turn, following in zip(turns, [*turns[1:], len(messages)], strict=True):
        tokens += chat.reply(messages[turn]["content"])
        tokens += chat.continuation(messages[turn + 1 : following])
    return tokens


def usage_of(choices: Sequence[ServedCompletion]) -> dict[str, int]:
    prompt, written = len(choices[0].prompt), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def main() -> int:
    configure_logging("serve")
    disable_progress_bar()
    request = json.loads(sys.stdin.read())
    try:
        model, tokenizer = load_folder(Path(request["folder"]))
        batches = BatchSampler(model, tokenizer)
    except (ModelUnusable, ChatUnusable) as error:
        report(error=str(error))
        return 1
    if model.num_parameters() < SMALL:
        torch.set_num_threads(1)  # several threads slow each other down
    return asyncio.run(
        _serve(ModelServer(batches, request["name"], request["token"]), request["host"], request["port"])
    )


async def _serve(server: ModelServer, host: str, port: int) -> int:
    runner = await listen(server.app(), host, port)
    if runner is None:
        return 1
    report(port=runner.addresses[0][1], model=server.name, context=server.batches.context)
    await wait_until_stopped()
    await server.batches.close()
    await runner.cleanup()
    return 0


if __name__ == "__main__":
    sys.exit(main())
