"""What clients of the OpenAI API ask for, and how they are told what is wrong."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MAX_STOPS = 16
MAX_CHOICES = 16
_NOT_OFFERED = {
    "tools": "this model makes no tool calls; describe the tools in the system message",
    "functions": "this model makes no tool calls; describe the tools in the system message",
    "logit_bias": "logit_bias is not supported",
    "presence_penalty": "presence_penalty is not supported",
    "frequency_penalty": "frequency_penalty is not supported",
    "top_logprobs": "only the log-probabilities of the sampled tokens are known: leave top_logprobs out",
}


class Refusal(Exception):
    """An error in OpenAI's form."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def as_json(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates take it; `tool` results come as the user's words, because few templates know them."""
        role = {"developer": "system", "tool": "user"}.get(self.role, self.role)
        return {"role": role, "content": self._text()}

    def _text(self) -> str:
        if isinstance(self.content, list):
            kinds = {part.get("type") for part in self.content} - {"text"}
            if kinds:
                raise Refusal("this model reads text only", param="messages", code="unsupported_content")
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. What is not known is ignored, what would change the answer refused."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    messages: list[Message] = Field(min_length=1, max_length=10_000)
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
    def _refuse_unknown_wishes(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            raise Refusal("the body is no JSON object")
        for name, why in _NOT_OFFERED.items():
            if values.get(name):
                raise Refusal(why, param=name, code="unsupported_parameter")
        form = values.get("response_format")
        if isinstance(form, dict) and form.get("type", "text") != "text":
            raise Refusal("only plain text is answered", param="response_format", code="unsupported_parameter")
        return {name: value for name, value in values.items() if value is not None}

    @property
    def stops(self) -> list[str]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in given if stop]

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def read_request(body: Any) -> ChatRequest:
    """Raises Refusal."""
    try:
        request = ChatRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refusal(f"{where}: {first['msg']}", param=where or None) from error
    if len(request.stops) > MAX_STOPS:
        raise Refusal(f"at most {MAX_STOPS} stop sequences", param="stop")
    if request.messages[-1].role == "assistant":
        raise Refusal("the last message is the assistant's own; end with a user's", param="messages")
    return request
