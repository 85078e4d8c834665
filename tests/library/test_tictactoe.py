"""Tic-tac-toe on a real server, move by move."""

from collections.abc import AsyncIterator

import pytest_asyncio

from backend.environments.library import load_package
from tests.library.conftest import Serve
from workers.environments.client import EnvSession


@pytest_asyncio.fixture
async def session(serve: Serve) -> AsyncIterator[EnvSession]:
    async with serve(load_package("tictactoe")) as server, server.session() as session:
        yield session


async def reset(session: EnvSession, seed: int, level: int = 2):
    return await session.reset({"seed": seed, "split": "train", "level": level, "index": seed}, timeout=10)


async def move(session: EnvSession, cell: int):
    return await session.step({"cell": cell}, timeout=10)


async def test_the_seeds_parity_states_who_begins(session: EnvSession):
    first = await reset(session, 4)
    assert (first.fields["message"], first.fields["legal_moves"]) == ("You start.", list(range(1, 10)))
    second = await reset(session, 5)
    assert second.fields["message"].startswith("O plays ")
    assert len(second.fields["legal_moves"]) == 8


async def test_an_invalid_move_is_reported_costs_a_turn_and_is_punished_once(session: EnvSession):
    await reset(session, 4)
    taken = await move(session, 5)
    assert taken.rewards["invalid_move"] == 0.0
    again = await move(session, 5)
    assert again.fields["message"] == "Invalid."
    assert again.rewards == {"win": 0.0, "invalid_move": -1.0}
    assert again.reward == -0.1
    off_the_board = await move(session, 77)
    assert (off_the_board.fields["message"], off_the_board.rewards["invalid_move"]) == ("Invalid.", 0.0)


async def test_eight_turns_end_the_game(session: EnvSession):
    await reset(session, 4)
    answers = [await move(session, 0) for _ in range(8)]
    assert [answer.done for answer in answers] == [False] * 7 + [True]
    assert answers[-1].rewards["win"] == 0.0


async def test_the_opponent_answers_the_same_board_and_seed_alike(session: EnvSession):
    replies = set()
    for _ in range(3):
        await reset(session, 8, level=0)
        replies.add((await move(session, 1)).fields["message"])
    assert len(replies) == 1


async def test_a_perfect_opponent_cannot_be_beaten_by_anyone(session: EnvSession):
    for seed in range(20):
        await reset(session, seed, level=2)
        answer = None
        while answer is None or not answer.done:
            reply = (await session.state(timeout=10))["scripts"]["gold"]
            answer = await move(session, int(reply.removeprefix("<move>").removesuffix("</move>")))
        assert (answer.fields["message"][-5:], answer.rewards["win"]) == ("Draw.", 0.5)


async def test_the_teacher_is_not_optimal_but_takes_wins(session: EnvSession):
    wins, losses = 0, 0
    for seed in range(60):
        await reset(session, seed, level=0)
        answer = None
        while answer is None or not answer.done:
            reply = (await session.state(timeout=10))["scripts"]["teacher"]
            answer = await move(session, int(reply.removeprefix("<move>").removesuffix("</move>")))
        assert answer.rewards["invalid_move"] == 0.0
        wins += answer.rewards["win"] == 1.0
        losses += answer.rewards["win"] == 0.0
    assert wins > losses > 5
