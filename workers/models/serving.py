"""An OpenAI-compatible endpoint over one local model: `/v1/models` and `/v1/chat/completions`."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from workers.models.chat import ChatTokens
from workers.models.serving_batches import Answer, Batches
from workers.models.serving_requests import ChatRequest, Refusal, read_request

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_WAITING = 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """The routes and what they need."""

    def __init__(self, batches: Batches, name: str, token: str = "") -> None:
        self.batches, self.name = batches, name
        self._token = token
        self._began = int(time.time())

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/health", self._health)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks the token; every error leaves in OpenAI's form."""
        try:
            self._check(request)
            return await handler(request)
        except Refusal as refusal:
            return _json(refusal.as_json(), refusal.status)
        except web.HTTPException as error:
            return _json(Refusal(error.reason, status=error.status).as_json(), error.status)

    def _check(self, request: web.Request) -> None:
        if not self._token or request.path == "/health":
            return
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode(errors="surrogateescape"), self._token.encode()):
            raise Refusal("Incorrect API key provided.", status=401, code="invalid_api_key")

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return _json({"status": "ok"})

    async def _models(self, _: web.Request) -> web.StreamResponse:
        return _json({"object": "list", "data": [self._described()]})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        self._check_name(request.match_info["name"])
        return _json(self._described())

    def _described(self) -> dict[str, Any]:
        told = {"id": self.name, "object": "model", "created": self._began, "owned_by": "proctor"}
        return {**told, "max_model_len": self.batches.context}

    def _check_name(self, name: str) -> None:
        if name and name != self.name:
            message = f"The model {name!r} does not exist; this endpoint serves {self.name!r}."
            raise Refusal(message, status=404, param="model", code="model_not_found")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = read_request(await _body(request))
        self._check_name(asked.model)
        if self.batches.waiting + asked.n > MAX_WAITING:
            raise Refusal("Too many requests wait already.", status=429, code="rate_limit_exceeded")
        prompt = await self._prompt(asked)
        answers = self._answers(asked, prompt)
        completion = _Completion(self.name, asked, len(prompt))
        if asked.stream:
            return await self._stream(request, completion, answers)
        await asyncio.gather(*(self.batches.answer(answer) for answer in answers))
        return _json(completion.whole(answers, self.batches.chat))

    async def _prompt(self, asked: ChatRequest) -> list[int]:
        messages = [message.plain() for message in asked.messages]
        try:
            prompt: list[int] = await self.batches.in_thread(lambda: prompt_tokens(self.batches.chat, messages))
        except Exception as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise Refusal(message, param="messages") from error
        room = self.batches.context - len(prompt) - 1
        if room < 1:
            raise Refusal(
                f"This model's maximum context length is {self.batches.context:,} tokens; your messages have "
                f"{len(prompt):,}, which leaves no room for an answer.",
                param="messages",
                code="context_length_exceeded",
            )
        return prompt

    def _answers(self, asked: ChatRequest, prompt: list[int]) -> list[Answer]:
        """A limit beyond the context is lowered to it: the answer is then cut, with finish reason `length`."""
        room = self.batches.context - len(prompt) - 1
        limit = min(asked.limit or room, room)
        seed = secrets.randbits(62) if asked.seed is None else asked.seed & (2**63 - 1)
        return [
            Answer(prompt, limit, seed + place, asked.temperature, asked.top_p, asked.stops) for place in range(asked.n)
        ]

    async def _stream(
        self, request: web.Request, completion: "_Completion", answers: Sequence[Answer]
    ) -> web.StreamResponse:
        """Server-sent events; a client that goes away ends its rows."""
        news: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for place, answer in enumerate(answers):
            answer.on_text = _teller(loop, news, place)
        work = asyncio.gather(*(self.batches.answer(answer) for answer in answers))
        work.add_done_callback(lambda _: news.put_nowait(None))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        try:
            await response.prepare(request)
            for place in range(len(answers)):
                await _send(response, completion.chunk(place, {"role": "assistant", "content": ""}))
            while (piece := await news.get()) is not None:
                await _send(response, completion.chunk(piece[0], {"content": piece[1]}))
            await work
            for chunk in completion.ends(answers, self.batches.chat):
                await _send(response, chunk)
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        finally:
            for answer in answers:
                answer.is_abandoned = True
            work.cancel()
        return response


class _Completion:
    """The words that the API answers in."""

    def __init__(self, model: str, asked: ChatRequest, prompt_length: int) -> None:
        self._asked, self._prompt_length = asked, prompt_length
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, answers: Sequence[Answer], chat: ChatTokens) -> dict[str, Any]:
        choices = [
            {
                "index": place,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer, chat),
                "finish_reason": answer.finish,
            }
            for place, answer in enumerate(answers)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage(answers)}

    def chunk(self, place: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": place, "delta": delta, "finish_reason": None, **more}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def ends(self, answers: Sequence[Answer], chat: ChatTokens) -> list[dict[str, Any]]:
        """The last chunk of each choice, then the usage where it was asked for. Log-probabilities come at the end."""
        ends = [
            self.chunk(place, {}, finish_reason=answer.finish, logprobs=self._logprobs(answer, chat))
            for place, answer in enumerate(answers)
        ]
        options = self._asked.stream_options
        if options and options.include_usage:
            usage = self._usage(answers)
            ends.append({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return ends

    def _usage(self, answers: Sequence[Answer]) -> dict[str, int]:
        written = sum(len(answer.tokens) for answer in answers)
        read = self._prompt_length
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _logprobs(self, answer: Answer, chat: ChatTokens) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        content = []
        for token, logprob in zip(answer.tokens, answer.logprobs, strict=True):
            if token != chat.end:
                text = chat.text_of([token])
                told = {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
                content.append({**told, "top_logprobs": []})
        return {"content": content, "refusal": None}


def prompt_tokens(chat: ChatTokens, messages: Sequence[dict[str, Any]]) -> list[int]:
    """As the local policy reads a conversation: the opening, then each reply with its end and what followed it."""
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[0] == 0:
        return list(chat.opening(messages))
    tokens = list(chat.opening(messages[: turns[0]]))
    for turn, following in zip(turns, [*turns[1:], len(messages)], strict=True):
        tokens += chat.reply(messages[turn]["content"])
        tokens += chat.continuation(messages[turn + 1 : following])
    return tokens


def _teller(
    loop: asyncio.AbstractEventLoop, news: asyncio.Queue[tuple[int, str] | None], place: int
) -> Callable[[str], None]:
    """Called in the sampling thread."""

    def tell(text: str) -> None:
        loop.call_soon_threadsafe(news.put_nowait, (place, text))

    return tell


async def _body(request: web.Request) -> Any:
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise Refusal(f"the body is no JSON: {error}") from error


async def _send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")


def _json(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
