"""The training API over real HTTP: what clients of Tinker send, with a tiny model."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from aiohttp import web
from peft import PeftModel

from backend.domain.training.configuration import ModelChoice
from workers.models.build import build_model, build_tokenizer
from workers.models.load import load_folder
from workers.training.api import learner as learners
from workers.training.api import sessions, wire
from workers.training.api.learner import Learner, Refused
from workers.training.api.server import PROTO, TrainingApi, load_learner
from workers.training.api.sessions import SessionLimits
from workers.training.api.wire import AdamParams, BadRequest, Datum, LoraShape, PassRequest

pytestmark = pytest.mark.filterwarnings("default")  # of peft and transformers
TOKEN = "tml-secret"
PROMPT, REPLY = [9, 20, 31, 42], [11, 12, 13]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tokenizer = build_tokenizer(["<move>4</move>"] * 9, context=64)
    build_model(tokenizer, ModelChoice(architecture="llama", context=64), seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def learner(base: Path) -> Iterator[Learner]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_learner(str(base))
    torch.set_num_threads(threads)


@dataclass
class ApiClient:
    """A client like Tinker's: it numbers its requests and waits for their results."""

    http: httpx.AsyncClient
    api: TrainingApi
    session: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    samples: int = 0

    async def post(self, path: str, body: Any, status: int = 200) -> Any:
        answer = await self.http.post(f"/api/v1/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def result(self, promise: Any) -> Any:
        answer = await self.http.post("/api/v1/retrieve_future", json={"request_id": promise["request_id"]})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def open(self) -> "ApiClient":
        self.session = (await self.post("create_session", {"tags": [], "sdk_version": "0.38.0"}))["session_id"]
        return self

    async def create(self, number: int = 0, **shape: Any) -> str:
        body = {"session_id": self.session, "model_seq_id": number, "base_model": "tiny"}
        created = await self.result(await self.post("create_model", body | {"lora_config": {"rank": 4, **shape}}))
        return str(created["model_id"])

    def numbered(self, model: str) -> dict[str, Any]:
        self.numbers[model] = self.numbers.get(model, 0) + 1
        return {"model_id": model, "seq_id": self.numbers[model]}

    async def run(self, path: str, model: str, /, **body: Any) -> Any:
        return await self.result(await self.post(path, {**self.numbered(model), **body}))

    async def learn(self, model: str, data: Sequence[Any], loss: str = "cross_entropy", **more: Any) -> Any:
        given = {"data": data, "loss_fn": loss, **more}
        return await self.run("forward_backward", model, forward_backward_input=given)

    async def step(self, model: str, **adam: Any) -> Any:
        return await self.run("optim_step", model, adam_params={"learning_rate": 0.01, **adam})

    async def sampler(self, model: str) -> str:
        self.samples += 1
        saved = await self.run("save_weights_for_sampler", model, sampling_session_seq_id=self.samples)
        return str(saved["sampling_session_id"])

    async def sample(self, sampler: str, number: int = 0, count: int = 1, **params: Any) -> Any:
        body = {"sampling_session_id": sampler, "seq_id": number, "num_samples": count, "prompt": chunks(PROMPT)}
        params = {"max_tokens": 3, "seed": 1, "temperature": 1.0, "top_k": -1, "top_p": 1, **params}
        return await self.result(await self.post("asample", body | {"sampling_params": params}))


def chunks(tokens: Sequence[int]) -> dict[str, Any]:
    return {"chunks": [{"tokens": list(tokens), "type": "encoded_text"}]}


def datum(tokens: Sequence[int], **inputs: Sequence[float]) -> dict[str, Any]:
    """A datum that predicts each next token."""
    arrays = {
        name: {"data": list(values), "dtype": "float32", "shape": [len(values)]} for name, values in inputs.items()
    }
    target = {"data": list(tokens[1:]), "dtype": "int64", "shape": [len(tokens) - 1]}
    return {"model_input": chunks(tokens[:-1]), "loss_fn_inputs": {"target_tokens": target, **arrays}}


def tokens_of(sampled: Any) -> list[list[int]]:
    return [each["tokens"] for each in sampled["sequences"]]


LESSON = datum([*PROMPT, *REPLY], weights=[0.0] * 3 + [1.0] * 3)


@asynccontextmanager
async def running(learner: Learner, folder: Path, **limits: Any) -> AsyncIterator[ApiClient]:
    api = TrainingApi(learner, "tiny", TOKEN, folder, limits=SessionLimits(**limits))
    runner = web.AppRunner(api.app(), handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.sessions.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with httpx.AsyncClient(base_url=address, headers={"X-API-Key": TOKEN}, timeout=30) as http:
            yield await ApiClient(http, api).open()
    finally:
        await runner.cleanup()
        await api.sessions.close()
        for model_id in list(learner.models):
            learner.remove(model_id)


@pytest.fixture
async def client(learner: Learner, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with running(learner, tmp_path) as client:
        yield client


@pytest.mark.slow
async def test_a_loop_at_the_client_lowers_the_loss_and_raises_the_reward(client: ApiClient) -> None:
    model = await client.create(seed=3)
    losses = []
    for _ in range(5):
        losses.append((await client.learn(model, [LESSON]))["metrics"]["loss:sum"])
        await client.step(model)
    assert losses[-1] < 0.5 * losses[0]

    learner_of_reward, rewards = await client.create(1, seed=4), []
    for step in range(8):
        sampled = await client.sample(await client.sampler(learner_of_reward), count=32, seed=step * 100)
        found = [sum(token < 128 for token in each["tokens"]) / len(each["tokens"]) for each in sampled["sequences"]]
        rewards.append(sum(found) / len(found))
        data = []
        for each, reward in zip(sampled["sequences"], found, strict=True):
            count, before = len(each["tokens"]), [0.0] * (len(PROMPT) - 1)
            advantages = [*before, *[reward - rewards[-1]] * count]
            data.append(datum([*PROMPT, *each["tokens"]], logprobs=[*before, *each["logprobs"]], advantages=advantages))
        await client.learn(learner_of_reward, data, "importance_sampling")
        await client.step(learner_of_reward, learning_rate=0.03)
    assert np.mean(rewards[-2:]) > np.mean(rewards[:2]) + 0.2


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling", "ppo", "cispo"])
def test_gradients_are_those_of_torch(learner: Learner, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over several batches, whose sequences have other lengths."""
    monkeypatch.setattr(learners, "BATCH_LOGITS", 12 * learner.vocabulary)
    random = np.random.default_rng(0)
    data, arrays = [], ("weights",) if loss == "cross_entropy" else ("logprobs", "advantages")
    for length in (5, 9, 3, 7):
        inputs: dict[str, Any] = {"target_tokens": random.integers(0, 200, length)}
        inputs |= {name: random.normal(size=length).astype(np.float32) for name in arrays}
        if "logprobs" in inputs:
            inputs["logprobs"] -= 5.5
        data.append(Datum(random.integers(0, 200, length), inputs))
    learner.create("m", LoraShape(rank=4, seed=1))
    try:
        own = learner.models["m"]
        with torch.no_grad():  # B is zero at the start, and A would have no gradient
            for parameter in own.parameters:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        result = learner.run_pass(PassRequest("m", None, data, loss, {}))
        found = [parameter.grad.clone() for parameter in own.parameters if parameter.grad is not None]
        learner._drop_gradients(own)

        total = torch.zeros(())
        for each, stated in zip(data, result.logprobs, strict=True):
            logits = learner.model(input_ids=torch.from_numpy(each.tokens)[None]).logits[0]
            logprobs = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(each.inputs["target_tokens"])[:, None])
            logprobs = logprobs[:, 0]
            given = {name: torch.from_numpy(each.inputs[name]) for name in arrays}
            torch.testing.assert_close(torch.from_numpy(stated.copy()), logprobs.detach(), atol=1e-5, rtol=1e-5)
            if loss == "cross_entropy":
                total = total - (logprobs * given["weights"]).sum()
                continue
            ratio = torch.exp(logprobs - given["logprobs"])
            gain = ratio * given["advantages"]
            if loss == "ppo":
                gain = torch.min(gain, torch.clamp(ratio, 0.8, 1.2) * given["advantages"])
            if loss == "cispo":
                gain = torch.clamp(ratio, 0.0, 4.0).detach() * logprobs * given["advantages"]
            total = total - gain.sum()
        wanted = torch.autograd.grad(total, own.parameters)
        assert result.metrics["loss:sum"] == pytest.approx(float(total.detach()), rel=1e-5)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
        assert max(float(each.abs().max()) for each in found) > 0
    finally:
        learner.remove("m")


async def test_saved_state_continues_exactly_and_loads_like_any_adapter(client: ApiClient, tmp_path: Path) -> None:
    model = await client.create(seed=3)
    for _ in range(2):
        await client.learn(model, [LESSON])
        await client.step(model)
    path = (await client.run("save_weights", model, path="two"))["path"]
    body = {"session_id": client.session, "model_seq_id": 7, "path": path, "optimizer": True}
    again = (await client.result(await client.post("load_weights", body)))["model_id"]
    assert (await client.post("weights_info", {"tinker_path": path}))["lora_rank"] == 4
    for each in (model, again):
        await client.learn(each, [LESSON])
        await client.step(each)
    both = [await client.learn(each, [LESSON]) for each in (model, again)]
    assert both[0]["loss_fn_outputs"] == both[1]["loss_fn_outputs"]

    folder = tmp_path / model.replace(":", "-") / "weights" / "two"
    assert not [each for each in folder.iterdir() if each.suffix in {".bin", ".pt", ".pkl"}]
    loaded, _ = load_folder(folder)
    assert isinstance(loaded, PeftModel)
    await client.run("load_weights", model, path=path)
    scored = await client.learn(model, [LESSON])
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([[*PROMPT, *REPLY][:-1]])).logits[0]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor([*PROMPT, *REPLY][1:])[:, None])[:, 0]
    assert scored["loss_fn_outputs"][0]["logprobs"]["data"] == pytest.approx(expected.tolist(), abs=1e-4)
    refused = await client.run("save_weights", model, path="two")
    assert "overwrite" in refused["error"]

    address = f"/api/v1/training_runs/{model}/checkpoints"
    [listed] = (await client.http.get(address)).json()["checkpoints"]
    assert (listed["checkpoint_id"], listed["checkpoint_type"], listed["tinker_path"]) == (
        "weights/two",
        "training",
        path,
    )
    assert (await client.http.delete(f"{address}/weights/two")).status_code == 204
    assert (await client.http.delete(f"{address}/weights/two")).status_code == 422
    assert (await client.http.get(address)).json() == {"checkpoints": []}


async def test_a_client_that_closes_its_session_frees_its_models(client: ApiClient) -> None:
    model = await client.create()
    finish = f"sessions/{client.session}/finish"
    await client.post(finish, {"reason": {"type": "success"}}, 204)
    await client.post(finish, {"reason": {"type": "success"}}, 204)
    assert model not in client.api.sessions.learner.models
    await client.post("session_heartbeat", {"session_id": client.session}, 410)


@pytest.mark.slow
async def test_samples_depend_on_weights_and_seed_and_not_on_other_requests(client: ApiClient) -> None:
    model = await client.create(seed=3)
    first = await client.sampler(model)
    base = {"session_id": client.session, "sampling_session_seq_id": 90, "base_model": "tiny"}
    plain = (await client.post("create_sampling_session", base))["sampling_session_id"]
    alone = await client.sample(first, 0, seed=5)
    before = client.api.sessions.batches
    together = await asyncio.gather(*(client.sample(first, 1 + seed, seed=seed) for seed in range(8)))
    assert client.api.sessions.batches - before <= 4
    bare = await client.sample(plain, 0, seed=5)  # the new adapter changes nothing
    assert tokens_of(together[5]) == tokens_of(alone) == tokens_of(bare)
    for _ in range(3):
        await client.learn(model, [LESSON])
        await client.step(model, learning_rate=0.05)
    assert await client.sample(first, 20, seed=5) == alone  # a snapshot
    later = await client.sample(await client.sampler(model), 0, seed=5)
    assert tokens_of(later) != tokens_of(alone)

    stop = alone["sequences"][0]["tokens"][1]
    cut = await client.sample(first, 21, seed=5, stop=[stop])
    assert (cut["sequences"][0]["tokens"], cut["sequences"][0]["stop_reason"]) == (
        alone["sequences"][0]["tokens"][:2],
        "stop",
    )
    body = {"sampling_session_id": first, "seq_id": 22, "prompt": chunks(PROMPT), "prompt_logprobs": True}
    scored = await client.result(await client.post("asample", body | {"prompt_logprobs_last_n": 2}))
    assert [value is None for value in scored["prompt_logprobs"]] == [True, True, False, False]


async def test_a_canceled_sample_ends(client: ApiClient) -> None:
    base = {"session_id": client.session, "sampling_session_seq_id": 1, "base_model": "tiny"}
    sampler = (await client.post("create_sampling_session", base))["sampling_session_id"]
    body = {"sampling_session_id": sampler, "prompt": chunks(PROMPT), "num_samples": 64}
    params = {"max_tokens": 60, "stop": []}
    first, second = [
        await client.post("asample", {**body, "seq_id": number, "sampling_params": params}) for number in range(2)
    ]
    for promise in (second, first):
        await client.post("cancel_future", {"request_id": promise["request_id"]}, 204)
    assert "canceled" in (await client.result(second))["error"]
    shortened = await client.result(first)
    assert "error" in shortened or len(shortened["sequences"][0]["tokens"]) < 60


async def test_requests_run_in_the_order_of_their_numbers_and_a_repeated_one_once(client: ApiClient) -> None:
    model = await client.create(seed=3)
    step = {"model_id": model, "adam_params": {"learning_rate": 0.01}}
    given = {"model_id": model, "forward_backward_input": {"data": [LESSON], "loss_fn": "cross_entropy"}}
    late = [
        await client.post("optim_step", {**step, "seq_id": 2}),
        await client.post("optim_step", {**step, "seq_id": 2}),
    ]
    assert late[0] == late[1]
    await client.post("forward_backward", {**given, "seq_id": 1})
    assert "grad_norm" in (await client.result(late[0]))["metrics"]
    assert "no gradients" in (await client.result(await client.post("optim_step", {**step, "seq_id": 3})))["error"]


async def test_a_missing_number_holds_up_the_others_only_for_a_while(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "GAP_SECONDS", 0.05)
    monkeypatch.setattr(sessions, "SWEEP_SECONDS", 0.05)
    async with running(learner, tmp_path) as client:
        model = await client.create()
        client.numbers[model] = 4
        assert (await client.learn(model, [LESSON]))["metrics"]["loss:sum"] > 0


async def test_protocol_buffers_say_the_same_as_json(client: ApiClient) -> None:
    model = await client.create(seed=3)
    plain = await client.learn(model, [LESSON, LESSON])
    client.numbers[model] += 1
    answer = await client.http.post(
        "/api/v1/forward_backward",
        content=as_proto(model, client.numbers[model], [LESSON, LESSON]),
        headers={"Content-Type": PROTO},
    )
    fetched = await client.http.post("/api/v1/retrieve_future", json=answer.json(), headers={"Accept": PROTO})
    assert fetched.headers["content-type"] == PROTO
    parts = list(wire._fields(memoryview(fetched.content)))
    record = dict(wire._fields(wire._bytes(dict(parts)[2])))
    tensor = dict(wire._fields(wire._bytes(wire._read_entry(record[2])[1])))
    values = np.frombuffer(wire._bytes(tensor[1]), np.float32)
    ends = np.frombuffer(wire._bytes(tensor[2]), np.int64)
    assert record[3] == 2
    assert ends.tolist() == [0, 24, 48]
    assert values[:6].tolist() == plain["loss_fn_outputs"][0]["logprobs"]["data"]


def as_proto(model: str, number: int, data: Sequence[Any]) -> bytes:
    """What Tinker's client sends."""
    body = wire._field(1, model.encode()) + wire._number(2, number)
    for each in data:
        tokens = np.asarray(each["model_input"]["chunks"][0]["tokens"], np.int32).tobytes()
        whole = wire._field(1, wire._field(1, wire._field(1, tokens)))
        for name, tensor in each["loss_fn_inputs"].items():
            kind = 1 if tensor["dtype"] == "float32" else 2
            dense = wire._field(1, np.asarray(tensor["data"], tensor["dtype"]).tobytes()) + wire._number(3, kind)
            entry = wire._field(1, name.encode()) + wire._field(2, dense + wire._field(4, bytes(tensor["shape"])))
            whole += wire._field(2, entry)
        body += wire._field(3, whole)
    return body + wire._field(4, b"cross_entropy")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "no data"),
        ([datum([1, 2, 10**6], weights=[1, 1])], "not in the vocabulary"),
        ([datum([1, 2, 3], weights=[1, 1, 1])], "3 values in weights for 2 tokens"),
        ([datum([1, 2, 3])], "lacks weights"),
        ([datum([1] * 70, weights=[1] * 69)], "between 1 and 64 are allowed"),
        ([datum([1, 2, 3], weights=[1, 1], mask=[1, 1])], "does not use"),
        ([datum([1, 2, 3], weights=[1e38, 1e38])], "not finite"),
    ],
)
async def test_unusable_data_is_refused_in_its_turn(client: ApiClient, data: Any, problem: str) -> None:
    model = await client.create()
    refused = await client.learn(model, data)
    assert problem in refused["error"]
    assert refused["category"] == "user"
    assert "loss:sum" in (await client.learn(model, [LESSON]))["metrics"]


async def test_unknown_losses_settings_models_and_parameters_are_refused(client: ApiClient) -> None:
    model = await client.create()
    assert "'dro' is not supported" in (await client.learn(model, [LESSON], "dro"))["error"]
    assert "no setting beta" in (await client.learn(model, [LESSON], loss_fn_config={"beta": 1.0}))["error"]
    await client.learn(model, [LESSON])
    assert "learning_rate" in (await client.step(model, learning_rate=-1))["error"]
    assert "path" in (await client.run("save_weights", model, path="../x"))["error"]
    body = {"session_id": client.session, "model_seq_id": 5, "base_model": "other", "lora_config": {"rank": 4}}
    await client.post("create_model", body, 404)
    await client.post("create_model", body | {"base_model": "tiny", "lora_config": {"rank": 10**6}}, 422)
    await client.post("create_model", body | {"base_model": "tiny", "optimizer_config": {"type": "dimuon"}}, 422)
    for path in ("tinker://a/weights/b", f"tinker://{model}/weights/../../x", f"tinker://{model}/weights/none"):
        given = {"session_id": client.session, "sampling_session_seq_id": 1, "model_path": path}
        await client.post("create_sampling_session", given, 422)
    await client.post(
        "forward_backward", {"model_id": "nothing", "forward_backward_input": {"data": [], "loss_fn": "x"}}, 410
    )
    sampler = await client.sampler(model)
    asked = {"sampling_session_id": sampler, "seq_id": 0, "prompt": chunks([1] * 64)}
    await client.post("asample", asked, 422)
    await client.post("asample", {**asked, "prompt": chunks([1]), "topk_sample_logprobs": 3}, 422)
    await client.post("asample", {**asked, "prompt": chunks([1]), "num_samples": 10**6}, 422)


async def test_sizes_are_checked_before_anything_is_read(client: ApiClient) -> None:
    http = client.http
    wrong = await http.post("/api/v1/create_session", content=b"x" * 10**6, headers={"X-API-Key": "tml-other"})
    assert wrong.status_code == 401
    for headers, status in (
        ({"Content-Length": str(9 << 20)}, 413),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Content-Encoding": "gzip", "Content-Length": "2"}, 415),
    ):
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        lines = [f"{name}: {value}" for name, value in {"Host": "x", "X-API-Key": TOKEN, **headers}.items()]
        writer.write(("POST /api/v1/create_session HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode())
        assert f" {status} ".encode() in await reader.readline()
        writer.close()
    assert (await http.post("/api/v1/create_session", content=b"[1]")).status_code == 422
    assert (await http.post("/api/v1/create_session", content=b"{")).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        b"\x1a\xff\xff\xff\xff\x0f",  # a sequence of 4 GiB
        b"\x80" * 20,  # a number without an end
        b"\x0b",  # a group
        b"\x10",  # cut
        b"\x0a\x01\xff",  # a name that is no text
        b"\x12\x01x",  # a text as a number
        b"\x08\x01" * 9000,  # too many fields
    ],
)
def test_hostile_protocol_buffers_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        wire.read_pass(body)


@pytest.mark.parametrize(
    "part",
    [
        wire._field(1, wire._field(2, b"image")),
        wire._field(1, wire._field(1, wire._field(1, b"123"))),
        wire._field(2, wire._field(1, b"weights") + wire._field(2, wire._field(2, b"sparse"))),
        wire._field(2, wire._field(1, b"w") + wire._field(2, wire._number(3, 1) + wire._field(4, b"\xff\xff\xff\x7f"))),
        wire._field(2, wire._field(1, b"w") + wire._field(2, wire._field(1, b"12345678") + wire._number(3, 9))),
        wire._field(2, wire._field(1, b"w")) * 9,
    ],
)
def test_data_of_another_kind_is_named_in_its_turn(learner: Learner, part: bytes) -> None:
    request = wire.read_pass(wire._field(1, b"m") + wire._field(3, part) + wire._field(4, b"cross_entropy"))
    learner.create("m", LoraShape(rank=1))
    try:
        with pytest.raises(Refused):
            learner.run_pass(request)
    finally:
        learner.remove("m")


async def test_a_session_without_a_sign_of_life_ends_and_frees_its_model(learner: Learner, tmp_path: Path) -> None:
    async with running(learner, tmp_path, idle_seconds=0.2, models=1, sessions=2) as client:
        model = await client.create()
        sampler = await client.sampler(model)
        other = await ApiClient(client.http, client.api).open()
        body = {"session_id": other.session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4}}
        await other.post("create_model", body, 429)
        await other.post("create_session", {}, 429)
        begin = time.monotonic()
        while model in learner.models and time.monotonic() - begin < 5:
            await asyncio.sleep(0.05)
            await other.post("session_heartbeat", {"session_id": other.session})
        await client.post("session_heartbeat", {"session_id": client.session}, 410)
        await client.post("optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}}, 410)
        await client.post("asample", {"sampling_session_id": sampler, "seq_id": 0, "prompt": chunks([1])}, 410)
        assert not list((tmp_path / ".temporary").iterdir())
        assert await other.create()


@pytest.mark.slow
async def test_two_clients_at_once_get_what_each_gets_alone(client: ApiClient) -> None:
    async def train(own: ApiClient, seed: int) -> Any:
        model = await own.create(seed=seed)
        for _ in range(3):
            await own.learn(model, [LESSON])
            await own.step(model)
        return await own.sample(await own.sampler(model), seed=9), await own.learn(model, [LESSON])

    alone = [await train(await ApiClient(client.http, client.api).open(), seed) for seed in (1, 2)]
    others = [await ApiClient(client.http, client.api).open() for _ in range(2)]
    together = await asyncio.gather(*(train(own, seed) for own, seed in zip(others, (1, 2), strict=True)))
    assert list(together) == alone
    assert alone[0] != alone[1]


def test_a_gradient_that_is_not_finite_changes_nothing(learner: Learner) -> None:
    learner.create("m", LoraShape(rank=2))
    try:
        own = learner.models["m"]
        given = {"target_tokens": np.array([1, 2]), "weights": np.array([1.0, 1.0], np.float32)}
        learner.run_pass(PassRequest("m", None, [Datum(np.array([1, 2]), given)], "cross_entropy", {}))
        before = [parameter.detach().clone() for parameter in own.parameters]
        own.parameters[0].grad = torch.full_like(own.parameters[0], torch.inf)
        with pytest.raises(Refused, match="not finite"):
            learner.step("m", AdamParams())
        assert all(torch.equal(one, other) for one, other in zip(before, own.parameters, strict=True))
    finally:
        learner.remove("m")
