"""A training run in several processes: `python -m workers.training.launch <run id>`.

Calls `accelerate launch` in this process, because its command hides how a process ended. This one ends like the first
process that failed, so that its parent can distinguish a kill from an error.
"""

import os
import shutil
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
from backend.settings import get_settings
from workers.storage.recorder import RunRecorder
from workers.training.assignment import training_folder
from workers.training.heartbeats import FOLDER as SIGNS
from workers.training.heartbeats import LAUNCHER, SignWatch, kill_ranks, read_signs, suspects
from workers.training.nodes import NodesMissing, gathered
from workers.training.ranks import AT_WORK

MODULE = "workers.training.run"
TRY_AGAIN = 75  # exit status of an attempt that another one may mend (EX_TEMPFAIL)


def write_configuration(choice: TrainingConfiguration, folder: Path) -> Path:
    """Write the file that `accelerate config` would write for this node.

    It says MULTI_GPU on a CPU too: accelerate starts several CPU processes only through mpirun, while its launcher for
    GPUs needs none. The processes then find no GPU and use the CPU.
    """
    settings, nodes = get_settings(), choice.hardware.nodes
    host, _, port = settings.nodes_address.rpartition(":")
    configuration = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "use_cpu": choice.hardware.device == "cpu" or not torch.cuda.is_available(),
        "num_machines": nodes,
        "machine_rank": settings.node_rank if nodes > 1 else 0,
        "num_processes": choice.hardware.processes,
        "gpu_ids": "all",
        "main_process_port": int(port) if nodes > 1 else 0,  # 0: any free port
        "mixed_precision": "no",  # the trainer gets it from hardware.precision
    }
    if nodes > 1:
        configuration |= {"main_process_ip": host, "rdzv_backend": "static"}
    file = folder / "ranks" / f"accelerate-{configuration['machine_rank']}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(configuration, sort_keys=False))
    return file


def main() -> int:
    """Return the exit status of the first process that failed, or 0. End by a signal if it did."""
    configure_logging("training")
    run_id = uuid.UUID(sys.argv[1])
    with transaction() as session:
        choice = TrainingConfiguration.of_run(session.get_one(Run, run_id).configuration)
    settings, nodes, recorder = get_settings(), choice.hardware.nodes, RunRecorder(run_id)
    if nodes == 1 or settings.node_rank == 0:
        folder = training_folder(run_id)
        shutil.rmtree(folder / SIGNS, ignore_errors=True)  # of an earlier attempt
        (folder / SIGNS).mkdir(parents=True)
        (folder / AT_WORK).touch()
    if nodes == 1 or settings.node_rank > 0:
        return launch(run_id, choice, recorder)

    def report(missing: list[int]) -> bool:
        message = f"node {', '.join(map(str, missing))}"
        recorder.progress(phase="waiting for nodes", done=nodes - len(missing), total=nodes, message=message)
        return not recorder.should_stop()

    try:
        with gathered(settings, run_id, nodes, report) as are_here:
            if are_here:
                return launch(run_id, choice, recorder)
    except NodesMissing as error:
        recorder.log(str(error), "error")
        sys.stderr.write(f"{error}\n")
        return TRY_AGAIN
    from workers.training.run import finish, stopped_on_request  # the stages are not needed otherwise

    finish(run_id, stopped_on_request(run_id), {})
    return 0


def launch(run_id: uuid.UUID, choice: TrainingConfiguration, recorder: RunRecorder) -> int:
    """Run this node's processes until they end, and return their exit status."""
    folder, hardware, rank = training_folder(run_id), choice.hardware, get_settings().node_rank
    is_alone = hardware.nodes == 1
    file = write_configuration(choice, folder)
    variables = {LAUNCHER: str(os.getpid())}
    if is_alone:
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    if hardware.sharding != "none":  # gathered states are moved to the CPU, so accelerate also sets gloo up on a GPU
        variables |= {"ACCELERATE_USE_FSDP": "true", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "FSDP_VERSION": "2"}
    os.environ |= variables  # noqa: TID251 - for the ranks
    options = ["--config_file", str(file), "--num_cpu_threads_per_process", str(choice.threads)]
    limits = {"count": hardware.processes, "start_limit": hardware.start_timeout}
    watch = SignWatch(folder, hardware.rank_timeout, kill_ranks, **limits)
    watch.start()
    try:
        launch_command(launch_command_parser().parse_args([*options, "--module", MODULE, str(run_id)]))
    except ChildFailedError as error:
        first, failure = error.get_first_failure()
        status, where = int(failure.exitcode), "" if is_alone else f"node {rank}: "
        message = f"{where}rank {first} ended first, with status {status}: {failure_message(failure.message)}"
        waited_for = suspects(read_signs(folder))
        if watch.silent:
            message, status = f"{where}{watch.silent}", TRY_AGAIN
        elif waited_for and "timed out" in message.lower():
            message = f"{message}. Others waited for {'; '.join(map(str, waited_for))}"
        if watch.silent or rank > 0:  # of a rank elsewhere, node 0 only sees that a connection was lost
            recorder.log(message, "error")
        sys.stderr.write(f"{message}\n")
        if status < 0:
            if -status != signal.SIGKILL:
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        return status
    finally:
        watch.leave()
    return 0


def failure_message(message: str | dict[str, object]) -> str:
    """Return a process's error in one line. `message`: the error in a dictionary, or a sentence about its signal."""
    text = message["message"] if isinstance(message, dict) else message
    return " ".join(str(text).split())[:500]


if __name__ == "__main__":
    sys.exit(main())
