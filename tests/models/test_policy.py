"""A local model as a policy: batches of sessions, exact tokens."""

import asyncio
from typing import Any

import numpy as np
import pytest

from backend.domain.errors import LimitExceeded
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import Split
from tests.factories import make_manifest
from tests.models.conftest import SYSTEM
from tests.models.test_sampling import plain_logprobs
from tests.rollouts.world import make_manifest as counting_manifest
from workers.models.policy import LocalPlayer, LocalPolicy
from workers.policies.base import EpisodeStart, TokenTrace, Turn

MANIFEST = make_manifest("game")


def start(number: int, member: int = 0) -> EpisodeStart:
    return EpisodeStart(task_of(MANIFEST, Split.TRAIN, number), MANIFEST, member, seed=1000 * number + member)


async def converse(player: LocalPlayer, turns: int, max_tokens: int = 6) -> list[dict[str, Any]]:
    """As the engine does it: the reply is appended, then the next observation."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "You start."}]
    for index in range(turns):
        reply = await player.act(Turn(index, messages, messages[-1]["content"], {}, {}, {}, max_tokens))
        messages.append({"role": "assistant", "content": reply.text})
        messages.append({"role": "user", "content": f"O plays {index + 1}."})
        await asyncio.sleep(0)
    player.close()
    return messages[:-1]


async def traces(policy: LocalPolicy, turns: list[int], begin_order: list[int] | None = None) -> list[TokenTrace]:
    order = begin_order or list(range(len(turns)))
    players = {number: await policy.begin(start(number)) for number in order}
    await asyncio.gather(*(converse(players[number], turns[number]) for number in order))
    found = [players[number].trace() for number in range(len(turns))]
    await policy.aclose()
    return [trace for trace in found if trace is not None]


async def test_all_waiting_sessions_are_answered_in_one_batch(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer)
    await traces(policy, [4, 4, 4, 4, 4])
    assert policy.batches == 4
    assert policy.sampler.prefills == 1


async def test_the_cache_is_kept_when_episodes_end(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer)
    await traces(policy, [4, 1, 2, 4, 3])
    assert policy.batches == 4
    assert policy.sampler.prefills == 1


async def test_the_trace_holds_exact_tokens_masks_and_logprobs(model: Any, tokenizer: Any) -> None:
    for trace in await traces(LocalPolicy(model, tokenizer, temperature=0.7), [3, 2, 3]):
        assert len(trace.completion) == len(trace.mask) == len(trace.logprobs)
        assert trace.completion[-1] == tokenizer.eos_token_id
        whole = trace.prompt + trace.completion
        expected = plain_logprobs(model, whole, len(trace.completion), temperature=0.7)
        for mine, mark, plain in zip(trace.logprobs, trace.mask, expected, strict=True):
            assert np.isclose(mine, plain, atol=1e-4) if mark else mine == 0.0


async def test_a_cut_reply_is_closed_by_a_token_that_is_not_the_policys(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer)
    player = await policy.begin(start(3))
    messages = [{"role": "user", "content": "You start."}]
    reply = await player.act(Turn(0, messages, "You start.", {}, {}, {}, max_tokens=1))
    trace = player.trace()
    await policy.aclose()
    assert trace is not None
    assert reply.is_truncated
    assert reply.tokens_out == 1
    assert trace.mask == [1, 0]
    assert trace.completion[1] == tokenizer.eos_token_id


async def test_lockstep_gives_the_same_episodes_in_any_order_of_arrival(model: Any, tokenizer: Any) -> None:
    played = []
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        policy = LocalPolicy(model, tokenizer, lockstep=True)
        policy.expected = 4
        played.append(await traces(policy, [3, 2, 3, 1], order))
        assert policy.sampler.prefills == 1
    assert played[0] == played[1]  # log-probabilities bit by bit


async def test_lockstep_waits_for_sessions_that_are_about_to_begin(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer, lockstep=True)
    policy.expected = 2
    first = await policy.begin(start(0))
    waiting = asyncio.create_task(converse(first, 1))
    await asyncio.sleep(0.05)
    assert policy.batches == 0
    await converse(await policy.begin(start(1)), 1)
    await waiting
    await policy.aclose()
    assert policy.batches == 1


async def test_a_session_that_gives_up_lets_the_others_continue(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer, lockstep=True)
    policy.expected = 2
    first, second = await policy.begin(start(0)), await policy.begin(start(1))
    waiting = asyncio.create_task(converse(first, 2))
    await asyncio.sleep(0.01)
    assert policy.batches == 0
    second.close()
    await asyncio.wait_for(waiting, 5)
    await policy.aclose()
    assert policy.batches == 2


async def test_a_first_prompt_beyond_the_context_is_a_limit(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer)
    player = await policy.begin(start(0))
    long = [{"role": "user", "content": "1 2 3 4 5 " * 40}]
    with pytest.raises(LimitExceeded, match="reads at most 128"):
        await player.act(Turn(0, long, "", {}, {}, {}, 5))
    player.close()
    await policy.aclose()


async def test_a_policy_that_fills_its_context_is_cut_and_keeps_a_trace_that_fits(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer)
    player = await policy.begin(start(0))
    messages = [{"role": "user", "content": "You start."}]
    replies = []
    while not replies or not (replies[-1].is_truncated and replies[-1].tokens_out == 0):
        reply = await player.act(Turn(len(replies), messages, "", {}, {}, {}, 30))
        replies.append(reply)
        messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "Invalid. 1 2 3"}]
    trace = player.trace()
    player.close()
    await policy.aclose()
    assert replies[-1].is_missing
    assert [reply.is_context_full for reply in replies[:2]] == [False, False]  # cut at their own limit
    assert trace is not None
    assert len(trace.prompt) + len(trace.completion) <= 128
    assert len(trace.completion) == len(trace.mask) == len(trace.logprobs)
    assert trace.completion[-1] == tokenizer.eos_token_id


async def test_its_own_cut_context_makes_each_turn_a_prompt(model: Any, tokenizer: Any) -> None:
    policy = LocalPolicy(model, tokenizer)
    manifest = counting_manifest(agent={"context": {"kind": "last", "turns": 1}})
    player = await policy.begin(EpisodeStart(task_of(manifest, Split.TRAIN, 0), manifest, 0, seed=7))
    first = [{"role": "user", "content": "0 of 3"}]
    later = [{"role": "user", "content": "2 of 3"}]
    await player.act(Turn(0, first, "0 of 3", {}, {}, {}, max_tokens=6))
    second = await player.act(Turn(1, later, "2 of 3", {}, {}, {}, max_tokens=6))
    assert second.tokens_in == len(policy.chat.opening(later))
    assert second.queue_seconds > 0
    assert player.trace() is None
    player.close()
    await policy.aclose()


async def test_partners_in_lockstep_answer_only_when_every_episode_waits(model: Any, tokenizer: Any) -> None:
    """Two policies act by turns in each episode; half of the episodes begin with the other one."""
    played = []
    for delay in (0.0, 0.02):
        lead, other = (LocalPolicy(model, tokenizer, lockstep=True) for _ in range(2))
        other.join(lead)
        lead.expected = 4

        async def episode(number: int, pair: tuple[LocalPolicy, ...] = (lead, other), delay: float = delay) -> Any:
            await asyncio.sleep(delay * (number % 3))
            players: list[LocalPlayer] = []
            order = pair if number % 2 else pair[::-1]
            messages = [[{"role": "user", "content": "You start."}], [{"role": "user", "content": "O plays 1."}]]
            for index in range(2):
                for place, policy in enumerate(order):
                    if index == 0:
                        players.append(await policy.begin(start(number)))
                    mine = messages[place]
                    reply = await players[place].act(Turn(index, mine, mine[-1]["content"], {}, {}, {}, 6))
                    mine += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "O plays 2."}]
                    await asyncio.sleep(delay)
            for player in players:
                player.close()
            return [player.trace() for player in players]

        played.append(await asyncio.wait_for(asyncio.gather(*map(episode, range(4))), 15))
        assert (lead.batches, other.batches) == (4, 4)
        other.withdraw()
        await lead.aclose()
        await other.aclose()
    assert played[0] == played[1]  # log-probabilities bit by bit
