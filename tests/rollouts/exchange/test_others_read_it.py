"""The libraries whose formats these are read what leaves: verifiers where its imported environments run, too."""

import asyncio
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from backend.runs.tables import Run
from backend.settings import get_settings
from tests.envhost_fixture import HostProcess, prepared_once
from tests.environments.importing.packages import python_over, python_with, v0_zoo, v1_zoo
from tests.rollouts.exchange.test_round_trip import exported
from workers.environments.client import EnvHost
from workers.environments.wheels import Installer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Ask = Callable[[str, str], Callable[[Path], Any]]
ZOOS = {"verifiers-0.3.1": v0_zoo, "verifiers-0.4.0": v1_zoo}
"""Packages that need the distribution, so that the env host builds what holds it."""

READ_V0 = """
from pathlib import Path
from verifiers.legacy.types import RolloutTiming
from verifiers.legacy.utils.error_utils import is_error_data
from verifiers.legacy.utils.metric_utils import EnvMetrics
from verifiers.legacy.utils.save_utils import load_outputs, make_dataset, validate_resume_metadata
folder = Path(sys.argv[1])
outputs = load_outputs(folder)
validate_resume_metadata(folder, "tictactoe", "gpt-small", 3, 2)
metrics = EnvMetrics()
metrics.add_outputs(outputs)
told = {
    "rewards": [output["reward"] for output in outputs],
    "errors": [is_error_data(output["error"]) for output in outputs if output["error"]],
    "win": metrics.compute()["win"],
    "rows": make_dataset({"outputs": outputs}).num_rows,
    "seconds": RolloutTiming.model_validate(outputs[0]["timing"]).total,
}
"""
READ_V1 = """
from pathlib import Path
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.state import State
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import Trace
from verifiers.v1.utils.trace_store import read_episodes
episodes = read_episodes(Path(sys.argv[1]), Trace[WireTaskData, State, WireAgentConfig])
traces = [episode.traces[0] for episode in episodes]
told = {
    "ok": [episode.ok for episode in episodes],
    "rewards": [round(trace.reward, 6) for trace in traces],
    "turns": [trace.num_turns for trace in traces],
    "tokens": traces[0].branches[0].token_ids,
    "logprobs": traces[0].branches[0].logprobs,
    "reasoning": traces[0].assistant_messages[0].reasoning_content,
}
"""
READ_INSPECT = """
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
log = read_eval_log(sys.argv[1])
told = {
    "samples": len(log.samples),
    "completed": log.results.completed_samples,
    "scores": {score.name: round(score.metrics["mean"].value, 6) for score in log.results.scores},
    "errors": [sample.error.message for sample in log.samples if sample.error],
    "unscored": [not sample.scores for sample in log.samples if sample.error],
    "summaries": len(read_eval_log_sample_summaries(sys.argv[1])),
    "said": log.samples[0].output.completion,
}
"""


@pytest.fixture
def ask_library(host_process: HostProcess, tmp_path: Path) -> Ask:
    """`ask_library(distribution, code)`: a function of a path whose code sets `told`, run with that library."""

    def python_with_it(distribution: str) -> Path:
        if distribution in ZOOS:
            asyncio.run(_built(host_process, ZOOS[distribution]("single")))
            return python_with(host_process.data, distribution)
        return asyncio.run(_installed(tmp_path / "library", distribution.replace("-0", "==0")))

    def ask(distribution: str, code: str) -> Callable[[Path], Any]:
        def look(path: Path) -> Any:
            whole = f"import json, sys\n{code}\nprint('TOLD' + json.dumps(told))"
            command = [str(python_with_it(distribution)), "-c", whole, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            return json.loads(done.stdout.rpartition("TOLD")[2])

        return look

    return ask


async def _built(process: HostProcess, files: dict[str, str]) -> None:
    async with EnvHost(process.address) as host:
        await prepared_once(host, process, files)


async def _installed(home: Path, requirement: str) -> Path:
    """An interpreter with that distribution alone."""
    installer, log = Installer(get_settings().runtime_python, home.parent / "environments"), home.with_suffix(".log")
    await installer.install(home, await installer.index.resolve([requirement], log), log, is_standalone=True)
    return python_over(installer.site_packages(home), home.with_suffix(".python"))


def test_verifiers_0_3_reads_its_results(api: TestClient, rich_run: Run, ask_library: Ask, tmp_path: Path) -> None:
    packed = tmp_path / "results.zip"
    packed.write_bytes(exported(api, rich_run, "verifiers_v0"))
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "results")
    told = ask_library("verifiers-0.3.1", READ_V0)(tmp_path / "results")
    assert told["rewards"] == [1.14, 1.04, 1.14, 0.0, 1.14, 1.04]
    assert told["errors"] == [True]
    assert (told["win"], told["rows"], told["seconds"]) == (1.0, 6, 3.0)


def test_verifiers_0_4_reads_its_traces(api: TestClient, rich_run: Run, ask_library: Ask, tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").write_bytes(exported(api, rich_run, "verifiers_v1"))
    told = ask_library("verifiers-0.4.0", READ_V1)(tmp_path)
    assert told["ok"] == [True, True, True, False, True, True]
    assert told["rewards"] == [1.14, 1.04, 1.14, 0.0, 1.14, 1.04]
    assert told["turns"] == [2, 2, 2, 0, 2, 2]
    assert told["tokens"] == [1, 2, 3, 7, 8, 2, 5, 6, 9, 2]
    assert told["logprobs"] == [0.0, 0.0, 0.0, -0.5, -0.25, -0.125, 0.0, 0.0, -1.5, -0.75]
    assert told["reasoning"] == "The middle is best."


def test_inspect_reads_its_log(api: TestClient, rich_run: Run, ask_library: Ask, tmp_path: Path) -> None:
    (tmp_path / "log.eval").write_bytes(exported(api, rich_run, "inspect"))
    told = ask_library("inspect-ai-0.3.285", READ_INSPECT)(tmp_path / "log.eval")
    assert (told["samples"], told["completed"], told["summaries"]) == (6, 5, 6)
    assert told["scores"] == {"reward": 1.1, "win": 1.0, "format": 0.7, "invalid_move": 0.4}
    assert (told["errors"], told["unscored"]) == (["policy: no answer"], [True])
    assert told["said"] == "<move>9</move>"


def test_datasets_loads_its_folder(api: TestClient, rich_run: Run, tmp_path: Path) -> None:
    packed = tmp_path / "folder.zip"
    packed.write_bytes(exported(api, rich_run, "huggingface"))
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "folder")
    code = (
        "import datasets, json, sys; rows = datasets.load_dataset(sys.argv[1], cache_dir=sys.argv[2])['heldout'];"
        "print('TOLD' + json.dumps([rows['reward'][:], rows[0]['columns'], rows[0]['messages'][2]['content']]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "folder"), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    rewards, columns, said = json.loads(done.stdout.rpartition("TOLD")[2])
    assert rewards == [1.14, 1.04, 1.14, None, 1.14, 1.04]
    assert columns["win"] == 1.0
    assert said == "<move>4</move>"
