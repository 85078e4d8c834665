"""The gate between the warm-up and GRPO: rewards teach nothing to a policy that is never understood."""

from typing import Any

from backend.checkpoints.tables import Checkpoint
from backend.domain.training.warm_up import HOPELESS, GateChoice
from workers.training.context import TrainingContext


class GateClosed(Exception):
    """The warm-up did not reach what GRPO needs."""


def gate_problems(gate: GateChoice, row: Checkpoint) -> list[str]:
    """What an examined checkpoint did not reach, for a person."""
    reached: dict[str, Any] = row.heldout
    success, reward = success_of(row), row.heldout_reward
    problems = []
    if reached["format"] < gate.minimum_format:
        problems.append(f"only {reached['format']:.0%} of replies could be read (wanted: {gate.minimum_format:.0%})")
    if success < gate.minimum_success:
        told = f"{success:.1%} of held-out tasks succeed" if success else "no held-out task succeeds"
        problems.append(f"{told} (wanted: {gate.minimum_success:.1%})")
    if gate.minimum_reward is not None and (reward is None or reward < gate.minimum_reward):
        problems.append(f"the held-out reward is {reward or 0:.3f} (wanted: {gate.minimum_reward:g})")
    return problems


def success_of(row: Checkpoint) -> float:
    """Share of held-out tasks that succeeded; 0 where every rollout failed."""
    estimate = row.heldout.get("success")
    return float(estimate["mean"]) if estimate else 0.0


def check_gate(bench: TrainingContext, row: Checkpoint) -> None:
    """Raises GateClosed with advice when GRPO would have nothing to learn from. A resumed run may pass."""
    gate = bench.configuration.gate
    problems = gate_problems(gate, row)
    bench.summary["gate"] = {"is_open": not problems, "problems": problems}
    if not problems:
        if not success_of(row):
            bench.recorder.log("no held-out task succeeds yet, and gate.minimum_success lets it through", "warning")
        return
    if bench.assignment.was_gate_closed:
        bench.recorder.log("the gate is closed, but the run was resumed: going on", "warning")
        return
    raise GateClosed(
        f"After the warm-up {' and '.join(problems)}. {advice(gate, row)} Or resume this run to go on all the same."
    )


def advice(gate: GateChoice, row: Checkpoint) -> str:
    """What usually helps against what was seen."""
    again = "" if gate.retries else ", or let it try again by itself (gate.retries)"
    if row.heldout["format"] < gate.minimum_format:
        return (
            f"Warm up longer (sft.steps), with another seed or learning rate{again}: small models differ much by seed."
        )
    if success_of(row) < min(gate.minimum_success, HOPELESS):
        return (
            "Its form is right and its play is not: begin with an easier level, or show it more and better play "
            "(sft.episodes, another script, a teacher's rollouts). Where the reward teaches before anything succeeds, "
            "set gate.minimum_success to 0."
        )
    return f"Warm up longer (sft.steps), on more or better play, or with another learning rate or seed{again}."
