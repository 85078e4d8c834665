"""Sampling at a vLLM server that gets the adapter before each step. A stand-in answers as `vllm serve` is documented
to, with a model on the CPU."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from backend.domain.training.adapter import AdapterChoice
from backend.domain.training.configuration import TrainingConfiguration
from tests.training.game import CHOICE, Outcome, make_tiny
from workers.models.load import Loaded, ModelUnusable, attach_adapter, load_folder, start_from_base
from workers.models.sampling import Row, Sampler
from workers.models.vllm_adapters import AdapterServer
from workers.training.checkpoints import save_model

pytestmark = pytest.mark.filterwarnings("default")


class Stand:
    """The server's adapters by name, and the calls it got."""

    def __init__(self, base: Path) -> None:
        self.base, self.adapters = base, dict[str, Any]()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        """By path: status and body of an answer that replaces the usual one."""

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.calls.append((path, body))
        if path in self.answers:
            return self.answers[path]
        match path:
            case "/v1/models":
                return 200, {"data": [{"id": "base"}]}
            case "/v1/load_lora_adapter":
                model = attach_adapter(load_folder(self.base)[0], Path(body["lora_path"]))
                self.adapters[body["lora_name"]] = model
                return 200, f"Success: LoRA adapter '{body['lora_name']}' added successfully."
            case "/v1/unload_lora_adapter":
                del self.adapters[body["lora_name"]]
                return 200, f"Success: LoRA adapter '{body['lora_name']}' removed successfully."
        tokenizer = load_folder(self.base)[1]
        assert body["stop_token_ids"] == [tokenizer.eos_token_id]
        sampler = Sampler(
            self.adapters[body["model"]],
            end=tokenizer.eos_token_id,
            pad=tokenizer.pad_token_id,
            temperature=body["temperature"],
        )
        rows = [Row(list(prompt), np.random.default_rng(place)) for place, prompt in enumerate(body["prompt"])]
        replies = sampler.sample(rows, [body["max_tokens"]] * len(rows))
        choices = [
            {"index": place, "token_ids": reply.tokens, "logprobs": {"token_logprobs": reply.logprobs}}
            for place, reply in enumerate(replies)
        ]
        return 200, {"choices": choices[::-1]}


@contextmanager
def serving(stand: Stand) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            status, content = stand.answer(self.path, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write((content if isinstance(content, str) else json.dumps(content)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_model(*make_tiny(), tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path) -> Loaded:
    return start_from_base(str(base), AdapterChoice(kind="lora", rank=4), seed=1)


def client(address: str, folder: Path, end: int = 1) -> AdapterServer:
    return AdapterServer(address, folder, end=end, temperature=1.0, top_p=1.0, top_k=0)


def use(server: AdapterServer, model: Any) -> None:
    server.check()
    server.swap(model)
    server.generate([[1, 2]], None, 1)


@pytest.mark.slow
def test_each_step_samples_from_the_adapter_in_training(base: Path, tmp_path: Path) -> None:
    model, tokenizer = adapted(base)
    save_model(model, tokenizer, tmp_path / "start")
    stand = Stand(base)
    with serving(stand) as address:
        server = client(address, tmp_path / "adapters", int(tokenizer.eos_token_id))
        server.check()
        choice = CHOICE.model_copy(update={"steps": 3, "learning_rate": 1e-2})
        outcome = Outcome(tmp_path / "states", start=tmp_path / "start", choice=choice, server=server)
        server.close()
    for step in outcome.steps:  # the trainer finds the probabilities that the server sampled with
        assert step.figures["ratio/mean"] == pytest.approx(1.0, abs=1e-4)
        assert step.figures["ratio/max"] == pytest.approx(1.0, abs=1e-3)
    loaded = [body["lora_name"] for path, body in stand.calls if path == "/v1/load_lora_adapter"]
    assert len(set(loaded)) == 3
    assert [body["lora_name"] for path, body in stand.calls if path == "/v1/unload_lora_adapter"] == loaded
    assert stand.adapters == {}
    assert list((tmp_path / "adapters").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        ("/v1/models", (200, {"data": []}), "serves no model"),
        ("/v1/models", (200, "<html>"), "serves no model"),
        ("/v1/load_lora_adapter", (404, {"detail": "Not Found"}), "HTTP 404.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ("/v1/load_lora_adapter", (400, "rank 64 is greater than max_lora_rank 16"), "max_lora_rank 16"),
        ("/v1/completions", (200, {"choices": [{"index": 0, "text": "4"}]}), "sent no token ids"),
        (
            "/v1/completions",
            (200, {"choices": [{"index": 0, "token_ids": [4, 4], "logprobs": {"token_logprobs": [-1.0]}}]}),
            "do not match the prompts",
        ),
        (
            "/v1/completions",
            (200, '{"choices": [{"index": 0, "token_ids": [4], "logprobs": {"token_logprobs": [NaN]}}]}'),
            "do not match the prompts",
        ),
    ],
)
def test_a_server_that_cannot_is_refused_with_the_reason(
    base: Path, tmp_path: Path, path: str, answer: tuple[int, Any], told: str
) -> None:
    stand = Stand(base)
    stand.answers[path] = answer
    if path != "/v1/load_lora_adapter":
        stand.answers.setdefault("/v1/load_lora_adapter", (200, "Success"))
    with serving(stand) as address, pytest.raises(ModelUnusable, match=told):
        use(client(address, tmp_path / "adapters"), adapted(base)[0])


def test_a_server_that_is_gone_is_tried_again(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = client(f"http://127.0.0.1:{unused.getsockname()[1]}", tmp_path)
        with pytest.raises(ConnectionError, match=r"\(vllm\.server\) does not answer"):
            server.check()


def test_it_needs_a_server_and_an_adapter() -> None:
    def problems(**choices: Any) -> list[str]:
        model = {"source": "base", "base": "some"}
        told = {"engine": "vllm", "model": model, "hardware": {"device": "cpu"}, **choices}
        return TrainingConfiguration.model_validate(told).problems(scripts=["teacher"], levels=1)

    there = {"mode": "lora", "server": "http://127.0.0.1:8000"}
    assert not problems(vllm=there, adapter={"kind": "lora"}), "the GPU is the server's"
    assert "Set adapter.kind=lora" in problems(vllm=there, adapter={"kind": "qlora"})[0]
    assert "vllm.server" in problems(vllm={"mode": "lora"}, adapter={"kind": "lora"})[0]
