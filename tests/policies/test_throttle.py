"""How many calls at a time, and when."""

import asyncio
import time

import pytest

from backend.domain.policies.prices import Limits
from workers.policies import throttle as throttle_module
from workers.policies.throttle import AdaptiveLimit, EndpointThrottle, Gate, parse_duration


async def test_a_gate_lets_in_as_many_as_its_limit_in_their_order() -> None:
    gate, seen = Gate(2), []

    async def visit(number: int) -> None:
        await gate.enter()
        seen.append((number, gate.inside))
        await asyncio.sleep(0.001)
        gate.leave()

    await asyncio.gather(*(visit(number) for number in range(6)))
    assert [number for number, _ in seen] == list(range(6))
    assert max(inside for _, inside in seen) == 2
    assert gate.inside == 0


async def test_a_raised_limit_lets_the_waiting_in_and_a_lowered_one_sends_no_one_back() -> None:
    gate = Gate(1)
    await gate.enter()
    others = [asyncio.create_task(gate.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set_limit(3)
    await asyncio.sleep(0)
    assert (gate.inside, len(gate.waiting)) == (3, 1)
    gate.set_limit(1)
    assert gate.inside == 3
    gate.leave()
    assert (gate.inside, len(gate.waiting)) == (2, 1)
    others[2].cancel()
    await asyncio.gather(*others, return_exceptions=True)
    gate.leave()
    gate.leave()
    assert gate.inside == 0


async def test_who_is_cancelled_while_let_in_gives_the_place_on() -> None:
    gate = Gate(1)
    await gate.enter()
    first, second = asyncio.create_task(gate.enter()), asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.leave()
    first.cancel()
    await asyncio.wait_for(second, 1)
    assert gate.inside == 1


def test_effort_grows_while_nothing_strains_and_never_above_its_ceiling() -> None:
    limit = AdaptiveLimit(100)
    seen = []
    limit.on_change = seen.append
    for _ in range(1000):
        limit.completed(0.01)
    assert seen == [64, 100]


def test_strain_lowers_it_once_in_a_while_and_it_comes_back_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = AdaptiveLimit(100, first=100)
    limit.overloaded()
    limit.overloaded()
    assert limit.limit == 70
    monkeypatch.setattr(throttle_module, "REST_SECONDS", 0.0)
    limit.overloaded()
    assert limit.limit == 49
    for _ in range(49):
        limit.completed(0.01)
    assert limit.limit == 53


def test_answers_that_take_longer_without_more_of_them_are_strain() -> None:
    limit = AdaptiveLimit(64, first=16)
    for _ in range(16):
        limit.completed(2.0)
    assert limit.limit == 32
    time.sleep(0.01)  # fewer a second than in the round before
    for _ in range(32):
        time.sleep(0.0002)
        limit.completed(9.0)
    assert limit.limit < 32


def test_quick_answers_are_never_strain() -> None:
    limit = AdaptiveLimit(64, first=8)
    for seconds in (0.01, 0.2, 0.5):
        for _ in range(limit.limit):
            limit.completed(seconds)
    assert limit.limit == 64


async def passed(throttle: EndpointThrottle) -> float:
    """How long a call waited for its place."""
    waited = await throttle.enter()
    throttle.leave()
    return waited


async def test_a_refusal_holds_everyone_and_lowers_the_limit() -> None:
    throttle = EndpointThrottle(Limits(concurrency=10))
    throttle.refused(0.1)
    assert await passed(throttle) >= 0.09
    assert throttle.concurrency.limit == 7


async def test_nearly_used_up_rate_limits_hold_the_next_calls() -> None:
    throttle = EndpointThrottle()
    await throttle.enter()
    throttle.read_headers({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "80ms"})
    throttle.leave()
    assert await passed(throttle) >= 0.07
    throttle.read_headers({"x-ratelimit-remaining-requests": "500", "x-ratelimit-remaining-tokens": "junk"})
    assert await passed(throttle) < 0.05


async def test_calls_a_minute_are_spread_evenly() -> None:
    throttle = EndpointThrottle(Limits(requests_per_minute=1200))  # one in 50 ms, a second's worth at once
    began = time.monotonic()
    for _ in range(25):
        await passed(throttle)
    assert 0.2 < time.monotonic() - began < 3.0


async def test_tokens_a_minute_are_paid_back_before_the_next_call() -> None:
    throttle = EndpointThrottle(Limits(tokens_per_minute=6000))  # a hundred a second
    await throttle.enter()
    throttle.completed(0.01, 110)
    throttle.leave()
    assert 0.05 < await passed(throttle) < 2.0


async def test_who_gives_up_waiting_leaves_no_place_taken() -> None:
    throttle = EndpointThrottle(Limits(concurrency=1))
    throttle.refused(0.05)
    waiting = asyncio.create_task(throttle.enter())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await asyncio.wait_for(passed(throttle), 1) <= 0.05
    second = asyncio.create_task(throttle.enter())
    await asyncio.wait_for(second, 1)
    throttle.leave()


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("6m0s", 360), ("20ms", 0.02), ("1.5", 1.5), ("", 0), (None, 0), ("soon", 0)]
)
def test_durations_as_endpoints_spell_them(text: str | None, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
