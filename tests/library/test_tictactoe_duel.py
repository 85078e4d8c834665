"""The two seats of the duel on a real server."""

from backend.domain.environments.manifest import read_manifest
from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import Phase, Split
from backend.environments.library import load_package
from tests.library.conftest import Serve
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan, RolloutPool
from workers.rollouts.seats import SeatAssignment, SeatPolicy, own_seat


async def test_equal_policies_share_each_task_when_the_seats_are_swapped(serve: Serve):
    files = load_package("tictactoe_duel")
    manifest, found = read_manifest(files["openenv.yaml"]), list[Rollout]()
    gold = ScriptedPolicy("gold")

    def assign(rollout: Rollout) -> SeatAssignment:
        seat = own_seat(manifest, rollout)
        return SeatAssignment(seat, {"o" if seat == "x" else "x": SeatPolicy("gold", gold)})

    async with serve(files) as server:
        await RolloutPool(
            [GroupPlan(task_of(manifest, Split.HELDOUT, index), index, (0, 1)) for index in range(16)],
            server=server,
            policy=gold,
            manifest=manifest,
            phase=Phase.EVALUATION,
            seed=0,
            concurrency=16,
            on_rollout=found.append,
            seats=assign,
        ).play()
    found.sort(key=lambda rollout: (rollout.group, rollout.member))
    assert all(rollout.is_completed for rollout in found)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert {one.metrics["match_score"] + other.metrics["match_score"] for one, other in pairs} == {1.0}
    assert len({rollout.metrics["match_score"] for rollout in found}) > 1  # not every opening is a draw
    assert found[0].messages[1]["content"].startswith("You are ")
    assert found[0].columns["win"] == found[0].metrics["match_score"]
