"""A training run in several processes: `python -m workers.training.ranks.launch <run id>`.

`accelerate launch` with a configuration that is written here, in its own process, because its command hides how a
process ended: this one ends as the first that failed, so that whoever waits can tell a kill from an error.
"""

import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.runs.tables import Run
from backend.settings import get_settings
from workers.training.ranks.joining import LAUNCHER, sign_of

MODULE = "workers.training.run"


def launch_configuration(choice: TrainingConfiguration, *, on_cpu: bool) -> dict[str, Any]:
    """What `accelerate config` would have asked.

    On a CPU it also says MULTI_GPU: accelerate starts several processes on a CPU through mpirun only, and its launcher
    for GPUs does the same without one. The processes then see for themselves that there is no GPU.
    """
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "use_cpu": on_cpu,
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": choice.hardware.processes,
        "gpu_ids": "all",
        "main_process_port": 0,  # any that is free
        "mixed_precision": "no",  # the trainer is told by hardware.precision
    }


def write_configuration(choice: TrainingConfiguration, folder: Path) -> Path:
    on_cpu = choice.hardware.device == "cpu" or not torch.cuda.is_available()
    file = folder / "ranks" / "accelerate.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(launch_configuration(choice, on_cpu=on_cpu), sort_keys=False))
    return file


def launch(run_id: uuid.UUID) -> int:
    """Returns the exit status of the first process that failed, or 0."""
    with transaction() as session:
        choice = TrainingConfiguration.of_run(session.get_one(Run, run_id).configuration)
    folder = get_settings().data / "training" / str(run_id)
    file = write_configuration(choice, folder)
    sign_of(folder).touch()
    os.environ |= {LAUNCHER: str(os.getpid()), "GLOO_SOCKET_IFNAME": "lo"}  # noqa: TID251 - for the ranks
    options = ["--config_file", str(file), "--num_cpu_threads_per_process", str(choice.threads)]
    try:
        launch_command(launch_command_parser().parse_args([*options, "--module", MODULE, str(run_id)]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        sys.stderr.write(f"rank {rank} ended first, with status {failure.exitcode}: {in_words(failure.message)}\n")
        return int(failure.exitcode)
    return 0


def in_words(message: str | dict[str, Any]) -> str:
    """What a process left behind: its error in a dictionary, or a sentence about its signal."""
    text = message["message"] if isinstance(message, dict) else message
    return " ".join(str(text).split())[:500]


def main() -> int:
    configure_logging("training")
    status = launch(uuid.UUID(sys.argv[1]))
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
