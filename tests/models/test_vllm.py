"""vLLM as a program next to the worker. It needs a GPU, so a program with the same command line takes its place and
serves the same weights with our server.
"""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import PolicyError
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Sampling
from backend.domain.training.configuration import ModelChoice
from backend.domain.vocabulary import Split
from backend.settings import PROJECT_ROOT, get_settings
from tests.rollouts.world import make_manifest
from workers.models import vllm
from workers.models.build import build_model
from workers.models.load import ModelUnusable
from workers.policies.base import EpisodeStart, Reply, Turn
from workers.policies.openai_api import Endpoint, OpenAiPolicy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SERVES = f"""#!{sys.executable}
import json, os, subprocess, sys
words = sys.argv[1:]
assert words[0] == "serve" and "--load-format" in words and os.environ["VLLM_API_KEY"] not in words
value = dict(zip(words[2::2], words[3::2]))
asked = dict(folder=words[1], name=value["--served-model-name"], host=value["--host"], port=int(value["--port"]))
asked["token"] = os.environ["VLLM_API_KEY"]
command = [sys.executable, "-m", "workers.models.serve"]
subprocess.run(command, input=json.dumps(asked), text=True, cwd={str(PROJECT_ROOT)!r})
"""
BREAKS = f"""#!{sys.executable}
import sys
sys.exit("CUDA out of memory")
"""

Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program called vllm on the path."""

    def write(text: str) -> None:
        program = tmp_path / "bin" / "vllm"
        program.parent.mkdir()
        program.write_text(text)
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.defpath}")

    return write


@pytest.fixture
def weights(tokenizer: Any, tmp_path: Path) -> str:
    folder = tmp_path / "weights"
    build_model(tokenizer, ModelChoice(architecture="llama", context=128), seed=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


async def ask(endpoint: Endpoint) -> Reply:
    policy = OpenAiPolicy(endpoint, Sampling(temperature=0))
    manifest = make_manifest()
    try:
        player = await policy.begin(EpisodeStart(task_of(manifest, Split.TRAIN, 0), manifest, 0, seed=1))
        messages = [{"role": "user", "content": "You start."}]
        return await player.act(Turn(0, messages, "You start.", {}, {}, {}, max_tokens=4))
    finally:
        await policy.aclose()


async def test_weights_are_served_asked_with_their_key_and_gone_afterwards(
    install: Install, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(SERVES)
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    get_settings.cache_clear()
    with vllm.serving(weights, seconds=120) as endpoint:
        reply = await ask(endpoint)
        assert 1 <= reply.tokens_out <= 4
        with pytest.raises(PolicyError, match="401"):
            await ask(Endpoint(endpoint.base_url, endpoint.model, "another", is_own=True))
    with pytest.raises(PolicyError, match="cannot be reached"):
        await ask(Endpoint(endpoint.base_url, endpoint.model, endpoint.key, attempts=1, is_own=True))
    get_settings.cache_clear()


def test_why_it_did_not_come_up_is_reported(install: Install, weights: str) -> None:
    install(BREAKS)
    with pytest.raises(ModelUnusable, match="ended with 1 while it started: CUDA out of memory"), vllm.serving(weights):
        pass


def test_it_is_offered_only_where_there_is_a_gpu(install: Install) -> None:
    install(SERVES)
    assert vllm.program() is not None
    assert vllm.is_offered() is vllm.torch.cuda.is_available()
