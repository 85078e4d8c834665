"""A second process that samples ahead for a training run: `python -m workers.training.sampler <run id> <weights>`.

It has its own copy of the model and its own env servers, and uses the last GPU if there are several. Orders and
rollouts travel as JSON lines over its standard input and output.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TextIO

import structlog
import torch
from pydantic import TypeAdapter
from sqlalchemy.exc import DBAPIError
from transformers.utils.logging import disable_progress_bar

from backend.core.logs import configure_logging
from backend.domain.errors import SandboxError
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase
from workers.models.load import Loaded, load_folder
from workers.models.policy import LocalPolicy
from workers.rollouts.engine import TooManyFailures
from workers.tasks.children import log_file, start_child
from workers.training.ahead import SampleOrder, load_trained
from workers.training.assignment import read_assignment
from workers.training.env_pool import open_env_pool
from workers.training.hardware import resolve_hardware, select_device

MODULE = "workers.training.sampler"
INFRASTRUCTURE_ERRORS = (DBAPIError, SandboxError, ConnectionError)
"""A training process fails with these, and its job is tried again."""
CLOSE_SECONDS = 2.0  # how long an idle process may take to end; a busy one is killed
_ORDER, _ROLLOUTS = TypeAdapter(SampleOrder), TypeAdapter(list[Rollout])

logger = structlog.get_logger(__name__)


class SamplingFailed(RuntimeError):
    """The process that samples ahead failed, or was killed."""


class SamplingProcess(AbstractContextManager["SamplingProcess"]):
    """The training process's side. It ends with the thread that enters it."""

    def __init__(self, run_id: uuid.UUID, weights: Path) -> None:
        """`weights`: folder of the checkpoint that the stage starts from."""
        self._arguments = [str(run_id), str(weights)]

    def __enter__(self) -> "SamplingProcess":
        source, orders = os.pipe()
        answers, output = os.pipe()
        self._orders, self._answers = open(orders, "w"), open(answers)
        run_id = uuid.UUID(self._arguments[0])
        log = log_file(MODULE, run_id)
        self.process = start_child(MODULE, self._arguments, log, source=source, output=output)
        os.close(source)
        os.close(output)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._orders.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_SECONDS)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._answers.close()

    def play(self, order: SampleOrder, weights: Path) -> list[Rollout]:
        """Return the rollouts of an order. Raises SamplingFailed, or what training raises for the same failure."""
        message = {"order": _ORDER.dump_python(order, mode="json"), "weights": str(weights)}
        try:
            self._orders.write(json.dumps(message) + "\n")
            self._orders.flush()
            line = self._answers.readline()
        except (OSError, ValueError):  # it ended, or was closed
            line = ""
        if not line.endswith("\n"):
            status = self.process.wait()
            ended = f"ended with status {status}" if status >= 0 else f"was killed ({signal.Signals(-status).name})"
            raise SamplingFailed(f"The process that samples ahead {ended} at the episodes of step {order.step}.")
        answer = json.loads(line)
        if "failed" in answer:
            raise TooManyFailures(answer["failed"])
        if "unreachable" in answer:
            raise ConnectionError(answer["unreachable"])
        if "error" in answer:
            raise SamplingFailed(f"The process that samples ahead failed at step {order.step}: {answer['error']}")
        return _ROLLOUTS.validate_python(answer["rollouts"])


def training_policy(configuration: TrainingConfiguration, loaded: Loaded) -> LocalPolicy:
    """Return the policy of GRPO's training episodes, which samples the same episodes from the same weights."""
    sampling = configuration.grpo.model_dump(include={"temperature", "top_p", "top_k"})
    is_bf16 = resolve_hardware(configuration.hardware).is_bf16
    return LocalPolicy(*loaded, **sampling, lockstep=True, is_bf16=is_bf16)


def sample(run_id: uuid.UUID, weights: Path, answers: TextIO) -> None:
    """Play each order of the standard input, until it is closed."""
    assignment = read_assignment(run_id)
    configuration = assignment.configuration
    torch.set_num_threads(configuration.threads)
    select_device(configuration.hardware)
    if torch.cuda.is_available():
        torch.cuda.set_device(torch.cuda.device_count() - 1)
    model, tokenizer = load_folder(weights)
    policy = training_policy(configuration, (model, tokenizer))
    with open_env_pool(assignment.envs, configuration) as env_pool:
        for line in sys.stdin:
            message = json.loads(line)
            order = _ORDER.validate_python(message["order"])
            load_trained(model, Path(message["weights"]))
            policy.sampler.temperature = order.temperature
            try:
                rollouts = env_pool.play_in_lockstep(
                    order.plans, policy, phase=Phase.TRAIN, seed=configuration.seed, training_step=order.step
                )
                answer: dict[str, object] = {"rollouts": _ROLLOUTS.dump_python(rollouts, mode="json")}
            except TooManyFailures as error:
                answer = {"failed": str(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        env_pool.close_policy(policy)


def main() -> int:
    run_id, weights = uuid.UUID(sys.argv[1]), Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed belongs in the log
    gc.freeze()
    configure_logging("sampling")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    try:
        sample(run_id, weights, answers)
    except Exception as error:
        logger.exception("sampling ahead failed")
        kind = "unreachable" if isinstance(error, INFRASTRUCTURE_ERRORS) else "error"
        answers.write(json.dumps({kind: f"{type(error).__name__}: {error}"}) + "\n")
        answers.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
