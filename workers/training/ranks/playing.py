"""A step's episodes, played by all ranks: each plays whole groups, with env servers and weights of its own."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter

from backend.domain.rollouts.rollout import Rollout
from workers.rollouts.engine import GroupPlan, TooManyFailures
from workers.training.ranks.ranks import Ranks

_PLANS = TypeAdapter(list[GroupPlan])
_ROLLOUTS = TypeAdapter(list[Rollout])

PlayPlans = Callable[[int, Sequence[GroupPlan]], list[Rollout]]
"""(training step, plans) → all their rollouts, in order."""


def play_together(ranks: Ranks, step: int, plans: Sequence[GroupPlan], play: PlayPlans) -> list[Rollout]:
    """Of the leader: all rollouts in the order of the plans. Raises TooManyFailures also where it befell a follower."""
    if ranks.count == 1:
        return play(step, plans)
    parts = shares(plans, ranks.count)
    ranks.deal([{"play": _as_json(_PLANS, part), "step": step} for part in parts])
    own = play(step, parts[0])
    nothing: dict[str, Any] = {}
    _, *answers = ranks.gather(nothing)
    return [*own, *(rollout for answer in answers for rollout in _rollouts_of(answer))]


def play_for_leader(ranks: Ranks, play: PlayPlans) -> Any:
    """Of a follower: plays what the leader asks for until it says what is to be learned, and returns that."""
    while True:
        said = ranks.hear()
        if "play" not in said:
            return said
        ranks.gather(_answer(said["step"], _PLANS.validate_python(said["play"]), play))


def shares(plans: Sequence[GroupPlan], count: int) -> list[list[GroupPlan]]:
    """Whole groups, in order, as evenly as can be; the first ranks have one more."""
    own, more = divmod(len(plans), count)
    ends = [own * number + min(number, more) for number in range(count + 1)]
    return [list(plans[first:last]) for first, last in pairwise(ends)]


def _as_json(form: TypeAdapter[Any], value: Any) -> Any:
    """Lists, dictionaries, texts and numbers that lose nothing on their way."""
    return form.dump_python(value, mode="json")


def _answer(step: int, plans: Sequence[GroupPlan], play: PlayPlans) -> dict[str, Any]:
    try:
        return {"rollouts": _as_json(_ROLLOUTS, play(step, plans))}
    except TooManyFailures as error:
        return {"failed": str(error)}


def _rollouts_of(answer: dict[str, Any]) -> list[Rollout]:
    if "failed" in answer:
        raise TooManyFailures(answer["failed"])
    return _ROLLOUTS.validate_python(answer["rollouts"])
