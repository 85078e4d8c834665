"""Sample at a running `vllm serve --enable-lora` that gets the adapter in training before each step.

Only the adapter travels, as files in a folder that the server also sees, and vLLM is not imported. The base stays
loaded, so a swap takes about as long as writing and reading the files. Each step's adapter has another name: vLLM then
reuses no cache of an older one.
"""

import json
import math
import shutil
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from peft import PeftModel

from workers.models.load import ADAPTER, ModelUnusable

SECONDS = 600.0  # timeout of a request: a batch of long replies takes a while
MOST_BYTES = 256 << 20  # of a response
_ADVICE = (
    "Start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve BASE --enable-lora --max-lora-rank RANK"
    " --logprobs-mode processed_logprobs`"
)


class AdapterServer:
    """Takes the place of TRL's `VLLMGeneration`. Sampling settings may change between calls."""

    def __init__(self, address: str, folder: Path, *, end: int, temperature: float, top_p: float, top_k: int) -> None:
        """`folder`: where adapters are written for the server. `end`: token that ends a reply."""
        self.temperature, self.top_p, self.top_k, self.max_completion_length = temperature, top_p, top_k, 1
        self._address, self._folder, self._end = address.rstrip("/"), folder, end
        self._name: str | None = None

    def check(self) -> None:
        """Raise ModelUnusable if this is no vLLM server, and ConnectionError if nothing answers."""
        models = self._request("/v1/models").get("data")
        if not isinstance(models, list) or not models:
            raise ModelUnusable(f"{self._address} (vllm.server) serves no model")

    def swap(self, model: PeftModel) -> None:
        """Give the server the model's current adapter, and remove the previous one."""
        name, previous = f"proctor-{uuid.uuid4().hex}", self._name
        folder = self._folder / name
        model.save_pretrained(str(folder), selected_adapters=[ADAPTER], save_embedding_layers=False)
        self._request("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
        self._name = name
        if previous is not None:
            self._unload(previous)

    def close(self) -> None:
        """Remove the adapter from the server. It may be gone already."""
        if self._name is not None:
            try:
                self._unload(self._name)
            except (ConnectionError, ModelUnusable):
                shutil.rmtree(self._folder / self._name, ignore_errors=True)
            self._name = None

    def generate(
        self, prompts: list[list[int]], images: None, num_generations: int
    ) -> tuple[object, list[list[int]], list[list[list[float]]], object]:
        """Return, as TRL does, prompts, replies, and for each token a list with its log-probability."""
        request = {
            "model": self._name,
            "prompt": prompts,
            "n": num_generations,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_completion_length,
            "stop_token_ids": [self._end],
            "logprobs": 0,
            "return_token_ids": True,
            **({"top_k": self.top_k} if self.top_k else {}),
        }
        answer = self._request("/v1/completions", request)
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            replies = [[int(token) for token in choice["token_ids"]] for choice in choices]
            logprobs = [[[float(value)] for value in choice["logprobs"]["token_logprobs"]] for choice in choices]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelUnusable(
                f"{self._address} sent no token ids or log-probabilities; vLLM 0.10.2 or newer does"
            ) from error
        lengths = [(len(reply), len(values)) for reply, values in zip(replies, logprobs, strict=True)]
        are_finite = all(math.isfinite(value) for values in logprobs for (value,) in values)
        if len(replies) != len(prompts) * num_generations or any(a != b for a, b in lengths) or not are_finite:
            raise ModelUnusable(f"{self._address} sent replies and log-probabilities that do not match the prompts")
        return prompts, replies, logprobs, None

    def _unload(self, name: str) -> None:
        self._request("/v1/unload_lora_adapter", {"lora_name": name})
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send JSON and return the answer's object; empty for an answer that is text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                content = response.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            reason = " ".join(error.read(2000).decode(errors="replace").split())[:300]
            advice = f" {_ADVICE}." if "lora" in path else ""
            raise ModelUnusable(f"{self._address}{path} returned HTTP {error.code}: {reason}.{advice}") from error
        except (OSError, ValueError) as error:
            raise ConnectionError(f"the vLLM server {self._address} (vllm.server) does not answer: {error}") from error
        if len(content) > MOST_BYTES:
            raise ModelUnusable(f"{self._address}{path} sent more than {MOST_BYTES >> 20} MB")
        try:
            answer = json.loads(content)
        except ValueError:
            return {}
        return answer if isinstance(answer, dict) else {}
