"""The airline's desk: its tools, its rules, and its rewards."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from backend.environments.library import load_package
from tests.library.conftest import Serve
from tests.library.tool_play import call, reset, state
from workers.environments.client import EnvSession

pytestmark = pytest.mark.slow

ASKED = re.compile(r"from (\w+) to (\w+) on (\w+)")


@pytest_asyncio.fixture
async def session(serve: Serve) -> AsyncIterator[EnvSession]:
    async with serve(load_package("flight_desk")) as server, server.session() as session:
        yield session


async def search(session: EnvSession, request: str) -> list[list[str]]:
    """The result: code and price."""
    found = ASKED.search(request)
    assert found is not None
    origin, destination, day = found.groups()
    answer = await call(session, "search_flights", origin=origin, destination=destination, day=day)
    return re.findall(r"(NL\d+) .*? (\d+) euros", answer.fields["message"])


def signed(request: str) -> str:
    return request.rpartition("Signed: ")[2]


async def test_the_cheapest_flight_reported_with_its_price_is_worth_everything(session: EnvSession):
    request = (await reset(session, 0)).fields["message"]
    code, price = min(await search(session, request), key=lambda flight: int(flight[1]))
    await call(session, "book_flight", flight=code, passenger=signed(request))
    closed = await call(session, "close_case", outcome="done", message=f"You are on {code}, {price} euros.")
    assert closed.done
    assert closed.rewards == {"goal": 1.0, "informed": 1.0, "policy_followed": 0.0, "no_wasted_calls": 1.0}


@pytest.mark.parametrize("message", ["Done.", "{code}, 1 euros and {price} euros", "XX1, {price} euros"])
async def test_a_message_that_states_less_or_hedges_informs_no_one(session: EnvSession, message: str):
    request = (await reset(session, 0)).fields["message"]
    code, price = min(await search(session, request), key=lambda flight: int(flight[1]))
    await call(session, "book_flight", flight=code, passenger=signed(request))
    closed = await call(session, "close_case", outcome="done", message=message.format(code=code, price=price))
    assert (closed.rewards["goal"], closed.rewards["informed"]) == (1.0, 0.0)


async def test_another_flight_is_no_goal_and_another_passenger_breaks_a_rule(session: EnvSession):
    request = (await reset(session, 0)).fields["message"]
    dear, _ = max(await search(session, request), key=lambda flight: int(flight[1]))
    booked = await call(session, "book_flight", flight=dear, passenger=signed(request))
    assert booked.rewards["policy_followed"] == 0.0
    stolen = await call(session, "book_flight", flight=dear, passenger="Me Myself")
    again = await call(session, "book_flight", flight=dear, passenger="Me Myself")
    assert (stolen.rewards["policy_followed"], again.rewards["policy_followed"]) == (-1.0, 0.0)
    assert (await call(session, "close_case", outcome="done", message="")).rewards["goal"] == 0.0


async def test_flights_sell_out_while_the_clerk_looks_around(session: EnvSession):
    sold = 0
    for index in range(1, 41, 4):
        request = (await reset(session, index)).fields["message"]
        first = await search(session, request)
        for _ in range(6):
            last = await search(session, request)
        assert set(last) <= set(first)
        sold += len(last) < len(first)
    assert sold == 10


async def test_looking_around_is_paid_for(session: EnvSession):
    request = (await reset(session, 0)).fields["message"]
    code, _ = min(await search(session, request), key=lambda flight: int(flight[1]))
    await search(session, request)
    await call(session, "get_booking", reference="NOSUCH")
    await call(session, "book_flight", flight=code, passenger=signed(request))
    closed = await call(session, "close_case", outcome="done", message="")
    assert closed.rewards["no_wasted_calls"] == 0.5


async def refusable(session: EnvSession, level: int, wanted: bool) -> dict[str, Any]:
    """The first task of a level that is to be refused, or is not."""
    for index in range(level, 400, 4):
        await reset(session, index)
        known = await state(session)
        if known["is_to_be_refused"] is wanted:
            return known
    raise AssertionError("no such task")


async def test_a_refusal_needs_a_look_at_the_booking(session: EnvSession):
    known = await refusable(session, 2, True)
    [reference] = known["bookings"]
    unseen = await call(session, "close_case", outcome="refused", message=f"{reference}, 0 euros")
    assert (unseen.done, unseen.rewards["goal"]) == (True, 0.0)
    await refusable(session, 2, True)
    await call(session, "get_booking", reference=reference)
    seen = await call(session, "close_case", outcome="refused", message=f"{reference}, 0 euros")
    assert (seen.rewards["goal"], seen.rewards["informed"]) == (1.0, 1.0)


async def test_what_the_rules_forbid_is_done_by_the_system_and_paid_for_by_the_clerk(session: EnvSession):
    known = await refusable(session, 3, True)
    [(reference, booking)] = known["bookings"].items()
    told = await call(session, "cancel_booking", reference=reference, refund=booking["price"])
    assert "Cancelled" in told.fields["message"]
    assert told.rewards["policy_followed"] == -1.0
    assert (await call(session, "close_case", outcome="done", message="")).rewards["goal"] == 0.0


async def test_the_customer_leaves_after_twelve_calls(session: EnvSession):
    await reset(session, 0)
    answers = [await call(session, "get_booking", reference="NOSUCH") for _ in range(12)]
    assert [answer.done for answer in answers] == [False] * 11 + [True]
    assert answers[-1].fields["message"].endswith("The customer has left.")


async def test_odd_arguments_are_reported(session: EnvSession):
    await reset(session, 0)
    for tool, arguments in (("fly", {}), ("search_flights", {}), ("get_booking", {"reference": 7}), ("__init__", {})):
        answer = await call(session, tool, **arguments)
        assert answer.fields["message"].startswith(("There is no tool", "These are not the arguments"))
