"""Support triage: the rules, the messages, partial credit."""

import pytest

from backend.environments.library import load_package
from tests.library.conftest import Serve
from tests.library.play import heldout, step
from tests.library.pure import module_of

rules, tickets, phrases = (module_of("support_triage", name) for name in ("rules", "tickets", "phrases"))


@pytest.mark.parametrize(
    ("cause", "days", "action"),
    [
        ("broken", 30, "replace"),
        ("broken", 31, "repair"),
        ("broken", 730, "repair"),
        ("broken", 731, "offer_discount"),
        ("unwanted", 30, "refund"),
        ("unwanted", 31, "decline"),
        ("late_parcel", 10, "give_status"),
        ("late_parcel", 11, "resend"),
        ("danger", 900, "escalate"),
    ],
)
def test_dates_decide_among_the_actions_of_a_category(cause: str, days: int, action: str):
    assert rules.decide(rules.Ticket(cause, days, False, "")).action == action


@pytest.mark.parametrize(
    ("cause", "is_pressing", "priority"),
    [
        ("danger", False, "urgent"),
        ("stranger_inside", False, "urgent"),
        ("overcharged", False, "high"),
        ("question", False, "low"),
        ("question", True, "high"),
        ("broken", False, "normal"),
        ("broken", True, "high"),
    ],
)
def test_the_cause_and_a_deadline_decide_the_priority(cause: str, is_pressing: bool, priority: str):
    assert rules.decide(rules.Ticket(cause, 5, is_pressing, "")).priority == priority


def test_every_cause_has_pieces_a_category_and_an_action():
    assert set(phrases.BY_CAUSE) == set(rules.CAUSES)
    for cause in rules.CAUSES:
        decision = rules.decide(rules.Ticket(cause, 5, False, ""))
        assert decision.category in rules.CATEGORIES
        assert decision.action in rules.ACTIONS


def test_the_splits_share_no_piece():
    for pieces in (*phrases.BY_CAUSE.values(), phrases.PRODUCTS, phrases.FILLERS, phrases.PRESSING, phrases.COMMANDS):
        train, tested = (tickets.pieces_of(split, pieces) for split in ("train", "heldout"))
        assert tested
        assert not set(train) & set(tested)
        assert len(train) + len(tested) == len(pieces)


@pytest.mark.parametrize("level", range(4))
def test_messages_are_functions_of_the_seed_and_hardly_ever_alike(level: int):
    made = [tickets.make_message(n, "train", level) for n in range(400)]
    assert made == [tickets.make_message(n, "train", level) for n in range(400)]
    assert len({message.text for message in made}) > 395
    assert all(message.decision.order in message.text for message in made)
    assert not [message.text for message in made if "{" in message.text]


async def test_partial_credit(serve: Serve):
    async with serve(load_package("support_triage")) as server, server.session() as session:

        async def decide(index: int, **changes: str):
            await session.reset(heldout(0, index), timeout=10)
            message = tickets.make_message(10_000_000 + index, "heldout", 0)
            return message.decision, await step(session, **(message.decision._asdict() | changes))

        index = next(
            n for n in range(200) if tickets.make_message(10_000_000 + n, "heldout", 0).decision.action == "repair"
        )
        wanted, right = await decide(index)
        assert set(right.rewards.values()) == {1.0}
        _, other_date = await decide(index, action="Replace")
        assert (other_date.rewards["action"], other_date.rewards["complete"]) == (0.3, 0.0)
        _, foreign = await decide(index, action="close", priority={"normal": "high", "high": "urgent"}[wanted.priority])
        assert (foreign.rewards["action"], foreign.rewards["priority"]) == (0.0, 0.3)
        _, elsewhere = await decide(index, category="privacy")
        assert (elsewhere.rewards["category"], elsewhere.rewards["reference"]) == (0.0, 0.0)
        _, unknown = await decide(index, priority="whenever", action="dance")
        assert (unknown.rewards["action"], unknown.rewards["priority"]) == (0.0, 0.0)
