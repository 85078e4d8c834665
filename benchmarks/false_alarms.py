"""Measure false alarms: honest training runs from scratch, with every detector on.

Peer: none.
Units: share of rollouts that any detector flags; flags about the run that are more severe than a note.
Repeats: 1. Runs are deterministic for a seed.

    python -m benchmarks.false_alarms --only instruct   # the runs whose preset or environment contains this text

The environments have no known hole, so every flag is false. Models are trained from scratch by the presets: a complete
`tictactoe-demo`, a shortened `tictactoe-mastery`, and `quick` on three other built-in environments. On the same three,
SmolLM2-135M-Instruct plays 200 training tasks each, served by llama.cpp. This part is skipped if the model is not
installed (`make instruct`).
"""

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.detectors.run_view import context_of, row_of
from backend.domain.detectors.spec import FlagDraft
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.runs.plans import Sampling
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import RolloutStatus, Severity
from backend.environments.library import load_package
from backend.rollouts.tables import Rollout
from backend.settings import get_settings
from benchmarks.detectors import play
from benchmarks.harness import Measure, Options, import_built_in, installation, print_table
from benchmarks.training import train_run
from workers.detectors.scanner import RunScanner
from workers.environments.client import EnvHost
from workers.models.gguf_base import PACKAGED
from workers.policies.openai_api import Endpoint, OpenAiPolicy

REPEATS = 1
LIMIT_SECONDS = 3 * 3600
TARGET = 0.001
SHORT: Mapping[str, Any] = {
    "sft": {"episodes": 6000, "steps": 600},
    "grpo": {"steps": 60},
    "gate": {"minimum_success": 0, "minimum_format": 0, "minimum_reward": None},
    "heldout": {"every": 60, "tasks": 100},
}
Setup = tuple[str, str, Mapping[str, Any]]
"""Environment, preset, and changed settings."""
RUNS: tuple[Setup, ...] = (
    ("arithmetic_ladder", "quick", {}),
    ("reverse_text", "quick", {}),
    ("number_guess", "quick", {}),
    ("tictactoe", "tictactoe-mastery", SHORT),
    ("tictactoe", "tictactoe-demo", {}),
)
INSTRUCT_MODEL = PACKAGED["smollm2-135m-instruct"]
INSTRUCT_ENVIRONMENTS = ("arithmetic_ladder", "reverse_text", "number_guess")
INSTRUCT_TASKS = 200


def measure(options: Options) -> Iterator[Measure]:
    yield from measure_runs(RUNS[: options.size(len(RUNS), 1)])
    if find_spec(INSTRUCT_MODEL.module) and not options.is_quick:
        yield from measure_instruct_model()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs whose preset or environment contains this text")
    chosen = parser.parse_args().only
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.WARNING)
    runs = [run for run in RUNS if chosen in f"{run[1]} {run[0]}"]
    measures = []
    parts = [measure_runs(runs)] if runs else []
    if chosen in "instruct":
        parts.append(measure_instruct_model())
    for each in chain(*parts):
        sys.stderr.write(f"{each.name}: {each.note}\n")  # a run takes minutes: what is known is said at once
        measures.append(each)
    print_table(Console(width=160), "false alarms", measures)
    return 0


def measure_instruct_model() -> Iterator[Measure]:
    """Scan what the instruct model replies in each environment."""
    found = find_spec(INSTRUCT_MODEL.module)
    if not found or not found.submodule_search_locations:
        raise SystemExit("The instruct model is not installed. Run `make instruct` once.")
    file = Path(found.submodule_search_locations[0]) / INSTRUCT_MODEL.file
    request = {"folder": str(file), "name": "instruct", "host": "127.0.0.1", "port": 0, "token": ""}
    command = [sys.executable, "-m", "workers.models.serve_gguf"]
    with installation(), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(request))
            child.stdin.close()
            url = f"http://127.0.0.1:{json.loads(child.stdout.readline())['port']}/v1"
            for name in INSTRUCT_ENVIRONMENTS:
                rows, drafts = asyncio.run(_scan_replies(name, url))
                flagged = {draft.rollout_id for draft in drafts} - {None}
                by = Counter(draft.detector for draft in drafts)
                note = f"{len(flagged)} of {rows}" + "".join(f", {each} {number}" for each, number in by.most_common())
                title = f"instruct model, {name}: rollouts flagged"
                yield Measure(title, "share", [len(flagged) / max(rows, 1)], target=TARGET, note=note)
        finally:
            child.terminate()


async def _scan_replies(name: str, url: str) -> tuple[int, list[FlagDraft]]:
    """Return the number of completed rollouts and all flags."""
    files = load_package(name)
    manifest = read_manifest(files[MANIFEST_PATH])
    endpoint = Endpoint(url, "instruct", is_own=True, timeout_seconds=300)
    policy = OpenAiPolicy(endpoint, Sampling(max_tokens_per_turn=48))
    try:
        async with EnvHost(get_settings().envhost_address) as host:
            await host.prepare(content_hash(files), files)
            async with host.lease(content_hash(files), manifest.proctor.resources) as server:
                played = await play(server, manifest, policy, INSTRUCT_TASKS, first=0, seed=0)
    finally:
        await policy.aclose()
    rows = [row for rollout in played if (row := row_of(uuid.uuid4(), rollout))]
    return len(rows), RunScanner(context_of(manifest, files, has_steps=False)).scan(0, rows)


def measure_runs(runs: Sequence[Setup]) -> Iterator[Measure]:
    flagged = total = 0
    with installation():
        versions = {name: import_built_in(name) for name in dict.fromkeys(name for name, _, _ in runs)}
        for environment, preset, changes in runs:
            choices = PRESETS[preset].configuration.model_dump(mode="json")
            for name, values in changes.items():
                choices[name] = choices[name] | values if isinstance(values, dict) else values
            configuration = TrainingConfiguration.model_validate(choices)
            run_id, _ = train_run(versions[environment], configuration.model_dump(mode="json"))
            of_run = Flag.run_id == run_id
            with transaction() as session:
                count = session.scalar(
                    select(func.count()).where(Rollout.run_id == run_id, Rollout.status == RolloutStatus.COMPLETED)
                )
                ids = session.scalar(select(func.count(Flag.rollout_id.distinct())).where(of_run)) or 0
                by = Counter(session.scalars(select(Flag.detector).where(of_run)))
                severe = session.scalars(
                    select(Flag.detector).where(of_run, Flag.rollout_id.is_(None), Flag.severity != Severity.NOTE)
                ).all()
            title, rollouts = f"{preset}, {environment}", count or 0
            flagged, total = flagged + ids, total + rollouts
            note = f"{ids:,} of {rollouts:,}" + "".join(f", {name} {number}" for name, number in by.most_common())
            yield Measure(f"{title}: rollouts flagged", "share", [ids / max(rollouts, 1)], target=TARGET, note=note)
            note = ", ".join(severe)
            yield Measure(f"{title}: flags about the run", "flags", [len(severe)], target=0, note=note)
    yield Measure(
        "all: rollouts flagged", "share", [flagged / max(total, 1)], target=TARGET, note=f"{total:,} rollouts"
    )


if __name__ == "__main__":
    sys.exit(main())
