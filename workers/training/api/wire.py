"""Messages of the training API, which has the wire of Tinker's public client (0.38): JSON, and two Protocol Buffers.

Passes over data and the tokens of samples are Protocol Buffers, read and written here field by field: every count and
size is checked before its array is made, and the nesting is that of the code. Everything else is JSON.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]
Value = int | memoryview

MAX_DATA = 1024
"""Sequences of one pass; the client sends more in several."""
MAX_CHUNKS = 256
MAX_INPUTS = 8
MAX_STOPS = 16
MAX_SAMPLES = 64
MAX_RANK = 256
MAX_FIELDS = 8192
"""Fields of one message; a pass has one for each sequence."""
MAX_SHAPE = 4
_FLOAT32, _INT64, _INT32 = 1, 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadRequest(ValueError):
    """The request cannot be read, or asks for something that is not supported."""


def explain(error: ValidationError) -> str:
    """The first problem of a body, without the value that was sent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


Id = Annotated[str, Field(min_length=1, max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Sequential = Annotated[int, Field(ge=0, lt=2**62)]


class LoraShape(_Body):
    """Which layers get an adapter, its rank and the seed of its first weights."""

    rank: int = Field(ge=1, le=MAX_RANK)
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    @model_validator(mode="after")
    def _trains(self) -> "LoraShape":
        if not (self.train_attn or self.train_mlp or self.train_unembed):
            raise ValueError("train_attn, train_mlp or train_unembed must be true")
        return self


class OptimizerKind(_Body):
    type: Literal["adamw"] = "adamw"


class CreateModel(_Body):
    session_id: Id
    model_seq_id: Sequential
    base_model: Annotated[str, Field(max_length=500)]
    lora_config: LoraShape
    optimizer_config: OptimizerKind = OptimizerKind()


class OfModel(_Body):
    """A request about one model. Requests with numbers run in their order."""

    model_id: Id
    seq_id: Sequential | None = None


class AdamParams(_Body):
    """Settings of one AdamW step."""

    learning_rate: float = Field(1e-4, ge=0, le=10)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-12, gt=0, le=1)
    weight_decay: float = Field(0.0, ge=0, le=100)
    grad_clip_norm: float = Field(0.0, ge=0, le=1e9)
    """0: gradients are not clipped."""


class OptimStep(OfModel):
    adam_params: AdamParams


class SaveWeights(OfModel):
    path: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = None
    overwrite: bool = False
    sampling_session_seq_id: Sequential | None = None


class LoadWeights(_Body):
    """Load saved weights into a model, or create one with them."""

    path: Annotated[str, Field(max_length=400)]
    optimizer: bool = False
    model_id: Id | None = None
    seq_id: Sequential | None = None
    session_id: Id | None = None
    model_seq_id: Sequential | None = None
    base_model: Annotated[str | None, Field(max_length=500)] = None


class CreateSamplingSession(_Body):
    session_id: Id
    sampling_session_seq_id: Sequential
    base_model: Annotated[str | None, Field(max_length=500)] = None
    model_path: Annotated[str | None, Field(max_length=400)] = None


class TextChunk(_Body):
    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]


class ModelInput(_Body):
    chunks: list[TextChunk] = Field(max_length=MAX_CHUNKS)

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.tokens]


Stop = Annotated[str, Field(min_length=1, max_length=200)]


class SamplingParams(_Body):
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    seed: int | None = None
    stop: (
        Stop
        | Annotated[list[Stop], Field(max_length=MAX_STOPS)]
        | Annotated[list[int], Field(max_length=MAX_STOPS)]
        | None
    ) = None
    """None: the model's end token. An empty list: nothing but the limit."""
    temperature: float = Field(1.0, ge=0, le=100, allow_inf_nan=False)
    top_k: int = Field(-1, ge=-1)
    top_p: float = Field(1.0, gt=0, le=1)


class SampleRequest(_Body):
    sampling_session_id: Id
    seq_id: Sequential
    num_samples: int = Field(1, ge=1, le=MAX_SAMPLES)
    prompt: ModelInput
    sampling_params: SamplingParams = SamplingParams()
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Annotated[int | None, Field(ge=1)] = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    prompt_alt_tokens_k: int = 0
    target_prompt_logprobs: object | None = None

    @model_validator(mode="after")
    def _supported(self) -> "SampleRequest":
        for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k", "target_prompt_logprobs"):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported")
        return self


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence: tokens, and arrays with an entry per token."""

    tokens: Tokens
    inputs: Mapping[str, Floats | Tokens]


@dataclass(frozen=True, slots=True)
class PassRequest:
    """Data for a forward pass and, unless `is_forward_only`, a backward pass that adds to the gradients."""

    model_id: str
    seq_id: int | None
    data: Sequence[Datum]
    loss: str
    settings: Mapping[str, float]
    is_forward_only: bool = False
    problem: str = ""
    """Why the data cannot be used. The request is refused in its turn, so that later ones do not wait for it."""


@dataclass(frozen=True, slots=True)
class PassResult:
    logprobs: Sequence[Floats]
    """Of the target tokens, by sequence."""
    metrics: Mapping[str, float]

    def as_json(self) -> dict[str, object]:
        outputs = [
            {"logprobs": {"data": each.tolist(), "dtype": "float32", "shape": [len(each)]}} for each in self.logprobs
        ]
        return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": dict(self.metrics)}

    def as_proto(self) -> bytes:
        ends = np.cumsum([0, *(each.nbytes for each in self.logprobs)], dtype=np.int64)
        tensor = _field(1, b"".join(each.tobytes() for each in self.logprobs)) + _field(2, ends.tobytes())
        entry = _field(1, b"logprobs") + _field(2, tensor + _number(3, _FLOAT32))
        record = _field(1, b"ArrayRecord") + _field(2, entry) + _number(3, len(self.logprobs))
        metrics = [
            _field(3, _field(1, name.encode()) + _key(2, _FIXED64) + struct.pack("<d", value))
            for name, value in self.metrics.items()
        ]
        return _field(1, b"ArrayRecord") + _field(2, record) + b"".join(metrics)


@dataclass(slots=True)
class SampledTokens:
    tokens: list[int]
    logprobs: list[float]
    is_cut: bool
    """It reached its limit."""


@dataclass(slots=True)
class SampleResult:
    sequences: list[SampledTokens] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None

    def as_json(self) -> dict[str, object]:
        sequences = [
            {"tokens": each.tokens, "logprobs": each.logprobs, "stop_reason": "length" if each.is_cut else "stop"}
            for each in self.sequences
        ]
        return {"type": "sample", "sequences": sequences, "prompt_logprobs": self.prompt_logprobs}

    def as_proto(self) -> bytes:
        parts = []
        for each in self.sequences:
            arrays = _field(2, np.asarray(each.tokens, np.int32).tobytes())
            arrays += _field(3, np.asarray(each.logprobs, np.float32).tobytes())
            parts.append(_field(1, _number(1, int(each.is_cut)) + arrays))
        if self.prompt_logprobs is not None:
            values = [np.nan if value is None else value for value in self.prompt_logprobs]
            parts.append(_field(2, np.asarray(values, np.float32).tobytes()))
        return b"".join(parts)


def read_pass(body: bytes) -> PassRequest:
    """Read the Protocol Buffer of `forward_backward`. Raises BadRequest."""
    model_id, loss, seq_id, is_forward_only, problem = "", "", None, False, ""
    data: list[Datum] = []
    settings: dict[str, float] = {}
    for number, value in _fields(memoryview(body)):
        match number:
            case 1:
                model_id = _text(value)
            case 2:
                seq_id = _whole(value)
            case 3:
                try:
                    if len(data) == MAX_DATA:
                        raise BadRequest(f"at most {MAX_DATA:,} sequences are allowed in one request")
                    data.append(_read_datum(_bytes(value)))
                except BadRequest as error:
                    problem = problem or str(error)
            case 4:
                loss = _text(value)
            case 5 | 7 if len(settings) < MAX_INPUTS:
                name, setting = _read_entry(value)
                settings[name] = _read_setting(setting) if number == 7 else _double(setting)
            case 5 | 7:
                raise BadRequest("the loss has too many settings")
            case 6:
                is_forward_only = bool(_whole(value))
    return PassRequest(model_id, seq_id, data, loss, settings, is_forward_only, problem)


class _JsonTensor(_Body):
    data: list[Number] = Field(default=[])
    dtype: Literal["float32", "int64"] = "float32"
    shape: list[int] | None = Field(default=None, max_length=MAX_SHAPE)


class _JsonDatum(_Body):
    model_input: ModelInput
    loss_fn_inputs: dict[str, _JsonTensor] = Field(max_length=MAX_INPUTS)


class _JsonInput(_Body):
    data: list[_JsonDatum] = Field(max_length=MAX_DATA)
    loss_fn: str = Field(max_length=100)
    loss_fn_config: Annotated[dict[str, Number] | None, Field(max_length=MAX_INPUTS)] = None


class JsonPass(OfModel):
    """The same as JSON, for clients without Protocol Buffers."""

    forward_backward_input: _JsonInput = Field(validation_alias="forward_backward_input")

    def request(self, *, is_forward_only: bool) -> PassRequest:
        given = self.forward_backward_input
        data = [
            Datum(
                np.asarray(each.model_input.tokens, np.int64),
                {
                    name: _shaped(np.asarray(tensor.data, np.dtype(tensor.dtype)), tensor.shape or [len(tensor.data)])
                    for name, tensor in each.loss_fn_inputs.items()
                },
            )
            for each in given.data
        ]
        settings = given.loss_fn_config or {}
        return PassRequest(self.model_id, self.seq_id, data, given.loss_fn, settings, is_forward_only)


def _read_datum(body: memoryview) -> Datum:
    chunks: list[Tokens] = []
    inputs: dict[str, Floats | Tokens] = {}
    for number, value in _fields(body):
        if number == 1:
            if len(chunks) == MAX_CHUNKS:
                raise BadRequest(f"a sequence has more than {MAX_CHUNKS} chunks")
            parts = dict(_fields(_bytes(value)))
            if set(parts) != {1}:
                raise BadRequest("only text is supported")
            text = dict(_fields(_bytes(parts[1])))
            chunks.append(_array(_bytes(text.get(1, memoryview(b""))), _INT32).astype(np.int64))
        elif number == 2:
            if len(inputs) == MAX_INPUTS:
                raise BadRequest("a sequence has too many arrays")
            name, tensor = _read_entry(value)
            inputs[name] = _read_tensor(_bytes(tensor))
    return Datum(np.concatenate([np.zeros(0, np.int64), *chunks]), inputs)


def _read_tensor(body: memoryview) -> Floats | Tokens:
    dense, kind = memoryview(b""), 0
    shape: list[int] = []
    for number, value in _fields(body):
        match number:
            case 1:
                dense = _bytes(value)
            case 2:
                raise BadRequest("sparse arrays are not supported")
            case 3:
                kind = _whole(value)
            case 4:
                shape += [value] if isinstance(value, int) else islice(_varints(value), MAX_SHAPE)
    flat = _array(dense, kind)
    return _shaped(flat, shape or [len(flat)])


def _shaped(flat: Floats | Tokens, shape: Sequence[int]) -> Floats | Tokens:
    if list(shape) != [len(flat)]:
        raise BadRequest(f"an array of shape {list(shape)[:MAX_SHAPE]} is not supported: give one value for each token")
    return flat


def _array(data: memoryview, kind: int) -> Floats | Tokens:
    name = {_FLOAT32: "<f4", _INT64: "<i8", _INT32: "<i4"}.get(kind)
    if name is None or len(data) % int(name[-1]):
        raise BadRequest("an array is neither float32 nor int64, or is cut")
    array: Floats | Tokens = np.frombuffer(data, name)
    return array


def _read_entry(value: Value) -> tuple[str, Value]:
    """A key and its value in a map."""
    parts = dict(_fields(_bytes(value)))
    return _text(parts.get(1, memoryview(b""))), parts.get(2, memoryview(b"\0" * 8))


def _read_setting(value: Value) -> float:
    parts = dict(_fields(_bytes(value)))
    if 1 not in parts:
        raise BadRequest("settings of a loss are numbers")
    return _double(parts[1])


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """The fields of a message: whole numbers, or the bytes of everything else."""
    place, end, count = 0, len(data), 0
    while place < end:
        if (count := count + 1) > MAX_FIELDS:
            raise BadRequest(f"a message has more than {MAX_FIELDS:,} fields")
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _varint(data, place)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise BadRequest("the message is not a Protocol Buffer of this request")
        if size > end - place:
            raise BadRequest("the message is cut")
        yield number, data[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            raise BadRequest("the message is cut")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise BadRequest("a number has more than 64 bits")


def _varints(data: memoryview) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _varint(data, place)
        yield value


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise BadRequest("a field has another type")
    return value


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise BadRequest("a field has another type")
    return value


def _text(value: Value) -> str:
    data = _bytes(value)
    try:
        return str(data[:201], "utf-8") if len(data) <= 200 else ""
    except UnicodeDecodeError as error:
        raise BadRequest("a text is not UTF-8") from error


def _double(value: Value) -> float:
    data = _bytes(value)
    if len(data) != 8:
        raise BadRequest("a field has another type")
    number: float = struct.unpack("<d", data)[0]
    return number


def _key(number: int, kind: int) -> bytes:
    return bytes((number << 3 | kind,))


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))


def _field(number: int, data: bytes) -> bytes:
    return _key(number, _BYTES) + _encode(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _encode(value)
