"""A training run in several processes: `python -m workers.training.launch <run id>`.

Calls `accelerate launch` in this process, because its command hides how a process ended. This one ends like the first
process that failed, so that its parent can distinguish a kill from an error.
"""

import os
import signal
import sys
import uuid
from pathlib import Path

import torch
import yaml
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.runs.tables import Run
from workers.training.assignment import training_folder
from workers.training.ranks import AT_WORK, LAUNCHER

MODULE = "workers.training.run"


def write_configuration(choice: TrainingConfiguration, folder: Path) -> Path:
    """Write the file that `accelerate config` would write.

    It says MULTI_GPU on a CPU too: accelerate starts several CPU processes only through mpirun, while its launcher for
    GPUs needs none. The processes then find no GPU and use the CPU.
    """
    configuration = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "use_cpu": choice.hardware.device == "cpu" or not torch.cuda.is_available(),
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": choice.hardware.processes,
        "gpu_ids": "all",
        "main_process_port": 0,  # any free port
        "mixed_precision": "no",  # the trainer gets it from hardware.precision
    }
    file = folder / "ranks" / "accelerate.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(configuration, sort_keys=False))
    return file


def main() -> int:
    """Return the exit status of the first process that failed, or 0. End by a signal if it did."""
    configure_logging("training")
    run_id = uuid.UUID(sys.argv[1])
    with transaction() as session:
        choice = TrainingConfiguration.of_run(session.get_one(Run, run_id).configuration)
    folder = training_folder(run_id)
    file = write_configuration(choice, folder)
    (folder / AT_WORK).touch()
    os.environ |= {LAUNCHER: str(os.getpid()), "GLOO_SOCKET_IFNAME": "lo"}  # noqa: TID251 - for the ranks
    options = ["--config_file", str(file), "--num_cpu_threads_per_process", str(choice.threads)]
    try:
        launch_command(launch_command_parser().parse_args([*options, "--module", MODULE, str(run_id)]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        message = failure_message(failure.message)
        status = int(failure.exitcode)
        sys.stderr.write(f"rank {rank} ended first, with status {status}: {message}\n")
        if status < 0:
            if -status != signal.SIGKILL:
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        return status
    return 0


def failure_message(message: str | dict[str, object]) -> str:
    """Return a process's error in one line. `message`: the error in a dictionary, or a sentence about its signal."""
    text = message["message"] if isinstance(message, dict) else message
    return " ".join(str(text).split())[:500]


if __name__ == "__main__":
    sys.exit(main())
