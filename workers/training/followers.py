"""A run's other processes: each does what the leader lets it do, and knows neither the database nor what comes next."""

import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import structlog
import torch

from workers.models.load import load_folder
from workers.training.assignment import Assignment, read_assignment
from workers.training.ending import finish, is_out_of_memory, out_of_memory
from workers.training.env_pool import env_pool_of
from workers.training.example_sources import kept_lessons
from workers.training.grpo.stage import GrpoRun
from workers.training.hardware import settle, take_device
from workers.training.ranks.joining import die_with_launcher, join, leave_with_leader, sign_of
from workers.training.ranks.orders import GrpoOrder, SftOrder, order_of
from workers.training.ranks.ranks import Ranks
from workers.training.sampling import training_player, training_sampler
from workers.training.trl_grpo import train_grpo
from workers.training.trl_sft import SftRun, train_sft

LEADERS_WORD_SECONDS = 10.0
"""After an error: the leader has often met the same, and records it."""

logger = structlog.get_logger(__name__)


def follow(run_id: uuid.UUID) -> NoReturn:
    """Until the leader leaves, which ends the process. An error of its own ends all ranks."""
    die_with_launcher()
    assignment = read_assignment(run_id)
    leave_with_leader(sign_of(assignment.folder))
    torch.set_num_threads(assignment.configuration.threads)
    try:
        take_device(assignment.configuration.hardware)
        _carry_out_orders(assignment, join())
    except Exception as error:
        logger.exception("a rank failed")
        time.sleep(LEADERS_WORD_SECONDS)
        if is_out_of_memory(error):  # the leader waits for this rank's gradient and cannot say it
            finish(run_id, out_of_memory(run_id, error), {})
        raise


def _carry_out_orders(assignment: Assignment, ranks: Ranks) -> NoReturn:
    while True:
        match order_of(ranks.hear()):
            case SftOrder() as order:
                _imitate(assignment, ranks, order)
            case GrpoOrder() as order:
                _reinforce(assignment, ranks, order)


def _imitate(assignment: Assignment, ranks: Ranks, order: SftOrder) -> None:
    configuration = assignment.configuration
    model, tokenizer = load_folder(Path(order.weights))
    train_sft(
        SftRun(
            model=model,
            tokenizer=tokenizer,
            choice=configuration.sft.model_copy(update={"steps": order.steps}),
            lessons=kept_lessons(Path(order.lessons)),
            seed=order.seed,
            folder=Path(order.folder),
            save_every=order.save_every,
            on_step=_of_the_leader,
            rate_factor=_of_the_leader,
            hardware=replace(settle(configuration.hardware), checkpoints_gradients=order.checkpoints_gradients),
            ranks=ranks,
        )
    )


def _reinforce(assignment: Assignment, ranks: Ranks, order: GrpoOrder) -> None:
    configuration = assignment.configuration
    hardware = replace(settle(configuration.hardware), checkpoints_gradients=order.checkpoints_gradients)
    model, tokenizer = load_folder(Path(order.weights))
    policy = training_sampler(model, tokenizer, configuration.grpo, hardware)
    with env_pool_of(assignment) as env_pool:
        train_grpo(
            GrpoRun(
                model=model,
                tokenizer=tokenizer,
                choice=configuration.grpo.model_copy(update={"micro_batches": order.parts}),
                columns=assignment.columns,
                seed=configuration.seed,
                folder=Path(order.folder),
                save_every=configuration.checkpoints.every,
                play=_of_the_leader,
                on_step=_of_the_leader,
                columns_of=assignment.columns_of if assignment.is_mixed else None,
                set_temperature=policy.set_temperature,
                hardware=hardware,
                ranks=ranks,
                play_share=training_player(env_pool, policy, configuration.seed),
            )
        )
        env_pool.close_policy(policy)


def _of_the_leader(*_: Any) -> NoReturn:
    raise AssertionError("only the leader does this")
