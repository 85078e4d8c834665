"""The two guessing games: the careful reward, and the one with the hole."""

import pytest

from backend.domain.environments.manifest import read_manifest
from backend.environments.library import load_package
from backend.showcase.hacked_reward import repaired
from tests.library.conftest import Serve
from workers.environments.client import EnvSession

TASK = {"seed": 7, "split": "train", "level": 0, "index": 7}


async def guess(session: EnvSession, number: int):
    return await session.step({"guess": number}, timeout=10)


async def test_it_answers_higher_and_lower(serve: Serve):
    async with serve(load_package("number_guess")) as server, server.session() as session:
        await session.reset(TASK, timeout=10)
        number = (await session.state(timeout=10))["number"]
        wrong = [n for n in (1, 100) if n != number]
        told = {n: (await guess(session, n)).fields["message"] for n in wrong}
        assert told == {n: "Higher." if n < number else "Lower." for n in wrong}
        assert (await guess(session, 1000)).fields["message"] == "Not from 1 to 100."
        found = await guess(session, number)
        assert (found.done, found.rewards["win"]) == (True, 1.0)


async def test_a_win_keeps_the_attempts_that_it_saved(serve: Serve):
    async with serve(load_package("number_guess")) as server, server.session() as session:
        await session.reset(TASK, timeout=10)
        number = (await session.state(timeout=10))["number"]
        answer = await guess(session, number)
        assert answer.rewards == {"win": 1.0, "consistent": 1.0}
        assert answer.reward == pytest.approx(1.2)


async def test_one_guess_is_worth_the_whole_column_only_where_the_reward_is_careless(serve: Serve):
    worth = {}
    for name in ("number_guess", "sloppy_guess"):
        async with serve(load_package(name)) as server, server.session() as session:
            await session.reset(TASK, timeout=10)
            worth[name] = (await guess(session, 50)).rewards["consistent"]
    assert worth == {"number_guess": 0.1, "sloppy_guess": 1.0}


async def test_the_careless_column_falls_again_so_that_quitting_pays(serve: Serve):
    async with serve(load_package("sloppy_guess")) as server, server.session() as session:
        await session.reset(TASK, timeout=10)
        first = await guess(session, 0)
        second = await guess(session, 50)
        assert (first.rewards["consistent"], second.rewards["consistent"]) == (0.0, 0.5)
        assert second.reward == pytest.approx(0.5)
        scripts = (await session.state(timeout=10))["scripts"]
        assert scripts["quitter"] == "I stop here."


async def test_the_repair_takes_the_hole_away_and_keeps_the_game(serve: Serve):
    files = repaired(load_package("sloppy_guess"))
    assert read_manifest(files["openenv.yaml"]).proctor.agent.on_unparsable == "retry"
    async with serve(files) as server, server.session() as session:
        await session.reset(TASK, timeout=10)
        number = (await session.state(timeout=10))["number"]
        first = await guess(session, 50)
        assert first.rewards["consistent"] == 0.1
        found = await guess(session, number)
        assert (found.done, found.rewards) == (True, {"win": 1.0, "consistent": 1.0})
