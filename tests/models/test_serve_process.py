"""`proctor serve FOLDER` and `proctor train-api FOLDER` as people start them: they say where, answer, end cleanly."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.domain.training.configuration import ModelChoice
from backend.settings import PROJECT_ROOT
from workers.models.build import build_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def weights(tokenizer: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    build_model(tokenizer, ModelChoice(architecture="llama", context=128), seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, command: str = "serve") -> subprocess.Popen[str]:
        whole = [sys.executable, "-m", "backend.cli", command, *arguments]
        process = subprocess.Popen(
            whole,
            cwd=PROJECT_ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its own foreground, so that Ctrl-C can be played
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_it_shows_where_it_listens_answers_and_ends_with_ctrl_c(weights: Path, start: Start) -> None:
    process = start(str(weights), "--port", "0", "--token", "s3cret", "--json")
    assert process.stdout is not None
    news = json.loads(process.stdout.readline())
    assert (news["model"], news["context"]) == ("tiny", 128)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "You start."}], "max_tokens": 4}
    answer = httpx.post(f"{news['url']}/chat/completions", json=body, headers={"Authorization": "Bearer s3cret"})
    assert answer.json()["choices"][0]["finish_reason"] in {"stop", "length"}
    assert httpx.get(f"{news['url']}/models").status_code == 401
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{news['url']}/models")


def test_a_folder_without_safe_weights_is_refused_with_a_message(tmp_path: Path, start: Start) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    process = start(str(tmp_path), "--port", "0")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "only safetensors" in said


def test_others_may_not_reach_it_without_a_token(weights: Path, start: Start) -> None:
    process = start(str(weights), "--host", "0.0.0.0")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--token" in said


def test_the_training_api_prints_its_key_answers_only_with_it_and_ends_with_ctrl_c(weights: Path, start: Start) -> None:
    process = start(str(weights), "--port", "0", "--json", command="train-api")
    assert process.stdout is not None
    news = json.loads(process.stdout.readline())
    assert (news["model"], news["context"], news["token"][:4]) == ("tiny", 128, "tml-")
    models = f"{news['url']}/api/v1/get_server_capabilities"
    answer = httpx.get(models, headers={"X-API-Key": news["token"]})
    assert answer.json()["supported_models"][0]["model_name"] == "tiny"
    assert httpx.get(models).status_code == 401
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 0


def test_the_training_api_refuses_keys_that_clients_refuse(weights: Path, start: Start) -> None:
    process = start(str(weights), "--token", "s3cret", command="train-api")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "tml-" in said
