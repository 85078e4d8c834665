"""The context of a policy in a long episode, and its reasoning apart from its answer."""

import uuid
from dataclasses import asdict
from typing import Any

import pytest

from backend.domain.environments.manifest import ContextSpec
from backend.domain.environments.prompts import split_reasoning, visible_messages
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.vocabulary import StopReason
from tests.rollouts.world import Replies, World, make_manifest, plans, play
from workers.policies.base import EpisodeStart, Reply, Turn
from workers.rollouts.engine import StoredEpisode, replay_episodes


def talk(turns: int, system: bool = True) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": "s"}] if system else []
    for turn in range(turns):
        messages += [{"role": "user", "content": f"u{turn}"}, {"role": "assistant", "content": f"a{turn}"}]
    return messages[:-1]


def read(context: ContextSpec, messages: list[dict[str, Any]]) -> str:
    return " ".join(message["content"] for message in visible_messages(context, messages))


def test_a_full_context_is_the_very_list() -> None:
    messages = talk(5)
    assert visible_messages(ContextSpec(), messages) is messages


def test_the_last_turns_come_after_the_prompt_and_the_first_turn() -> None:
    last = ContextSpec(kind="last", turns=2)
    assert read(last, talk(3)) == "s u0 a0 u1 a1 u2"
    assert read(last, talk(6)) == "s u0 a0 u4 a4 u5"
    assert read(last, talk(6, system=False)) == "u0 a0 u4 a4 u5"
    assert read(ContextSpec(kind="last", turns=1), talk(6)) == "s u0 a0 u5"


def test_it_states_whether_an_episode_can_be_longer_than_what_is_read() -> None:
    assert ContextSpec(kind="last", turns=2).cuts(max_turns=4)
    assert not ContextSpec(kind="last", turns=2).cuts(max_turns=3)
    assert not ContextSpec().cuts(max_turns=1000)


async def test_the_policy_reads_a_part_and_the_rollout_keeps_the_whole() -> None:
    manifest = make_manifest(agent={"context": {"kind": "last", "turns": 1}})
    policy = Replies("no")
    [rollout] = await play(World(), policy, plans(1), manifest)
    assert [len(seen) for seen in policy.seen] == [2, 4, 4, 4, 4, 4, 4, 4]
    assert {seen[1]["content"] for seen in policy.seen} == {"0 of 3"}
    assert len(rollout.messages) == 17


class Filled(Replies):
    """A policy whose context is full after its replies."""

    async def begin(self, start: EpisodeStart) -> Any:
        player = await super().begin(start)
        act = player.act

        async def act_or_stop(turn: Turn) -> Reply:
            return await act(turn) if turn.index < len(self.texts) else Reply("", 99, 0, True, True)

        player.act = act_or_stop  # type: ignore[method-assign]
        return player


@pytest.mark.parametrize("on_unparsable", ["retry", "end", "pass"])
async def test_an_episode_that_outgrows_the_context_ends_there_and_keeps_its_rewards(on_unparsable: str) -> None:
    manifest, world = make_manifest(agent={"on_unparsable": on_unparsable}), World()
    [rollout] = await play(world, Filled("<move>1</move>", "<move>1</move>"), plans(1), manifest)
    assert (rollout.is_completed, rollout.stop_reason, rollout.is_truncated) == (True, StopReason.CONTEXT_FULL, True)
    assert (len(rollout.steps), rollout.columns["format"], rollout.columns["win"]) == (2, 1.0, 0.0)
    assert [message["role"] for message in rollout.messages[-3:]] == ["user", "assistant", "user"]

    steps = [asdict(step) for step in rollout.steps]
    stored = StoredEpisode(uuid.uuid4(), rollout.task, RecordedEpisode({}, steps), stop_reason=rollout.stop_reason)
    [again] = await replay_episodes([stored], server=world, manifest=manifest, concurrency=1)  # type: ignore[arg-type]
    assert (again.rollout.stop_reason, again.replies_ended, again.replies_left) == (StopReason.CONTEXT_FULL, False, 0)


async def test_a_reply_that_the_context_cut_ends_the_episode_for_that_reason() -> None:
    class Cut(Replies):
        async def begin(self, start: EpisodeStart) -> Any:
            player = await super().begin(start)

            async def act(_: Turn) -> Reply:
                return Reply("<move>", 99, 2, is_truncated=True, is_context_full=True)

            player.act = act  # type: ignore[method-assign,assignment]
            return player

    [rollout] = await play(World(), Cut("-"), plans(1))
    assert (rollout.stop_reason, len(rollout.steps)) == (StopReason.CONTEXT_FULL, 1)


def test_reasoning_ends_where_the_policy_says_so() -> None:
    assert split_reasoning("<think>\nSix?\n</think>\n\n<move>2</move>") == ("Six?", "<move>2</move>")
    assert split_reasoning("the template opened it</think><move>2</move>") == (
        "the template opened it",
        "<move>2</move>",
    )
    assert split_reasoning("<move>2</move>") == ("", "<move>2</move>")
    assert split_reasoning("<think>I never end") == ("I never end", "")


async def test_a_move_in_the_thoughts_is_no_move() -> None:
    manifest = make_manifest(agent={"reasoning": "think"})
    policy = Replies("<think>Maybe <move>1</move>?</think><move>2</move>", "<think><move>1</move>", "<move>1</move>")
    [rollout] = await play(World(), policy, plans(1), manifest)
    assert [step.action for step in rollout.steps] == [{"add": 2}, None, {"add": 1}]
    assert rollout.messages[2] == {
        "role": "assistant",
        "content": "<move>2</move>",
        "reasoning": "Maybe <move>1</move>?",
    }
    assert "reasoning" not in rollout.messages[6]


async def test_without_the_option_a_reply_is_all_answer() -> None:
    [rollout] = await play(World(), Replies("<think><move>2</move></think><move>1</move>"), plans(1))
    assert rollout.steps[0].action is None
    assert "reasoning" not in rollout.messages[2]
