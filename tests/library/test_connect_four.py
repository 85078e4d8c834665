"""Connect four: its rules, its search, and its rewards."""

import pytest

from backend.environments.library import load_package
from tests.library.conftest import Serve
from tests.library.play import heldout, play, rewards_of, step
from tests.library.pure import module_of

game = module_of("connect_four", "game")


def after(*columns: int):
    """The position after these columns, 1 to 7, players taking turns."""
    position = game.Position()
    for column in columns:
        position = position.drop(column - 1)
    return position


@pytest.mark.parametrize(
    "columns",
    [
        (1, 2, 1, 2, 1, 2, 1),
        (1, 1, 2, 2, 3, 3, 4),
        (1, 2, 2, 3, 3, 4, 3, 4, 4, 6, 4),
        (4, 3, 3, 2, 2, 1, 2, 1, 1, 6, 1),
    ],
    ids=["upright", "across", "rising", "falling"],
)
def test_four_in_a_row_win_in_every_direction(columns):
    assert game.has_four(after(*columns).theirs)
    assert not game.has_four(after(*columns[:-1]).mine)


def test_a_line_does_not_run_over_the_edge_into_the_next_column():
    position = after(
        1, 2, 1, 2, 1, 3, 2, 3, 2, 3, 2
    )  # three at the bottom of one column, others at the top of the next
    assert not game.has_four(position.theirs)
    assert len(game.LINES) == 69


def test_a_full_column_is_not_open():
    assert 0 not in game.open_columns(after(1, 1, 1, 1, 1, 1))
    assert len(game.open_columns(after(1, 1, 1, 1, 1))) == 7


def test_the_search_takes_a_win_and_blocks_one():
    assert game.best_column(after(4, 1, 4, 1, 4, 1), 3) == 3
    assert game.good_columns(after(4, 1, 4, 2, 4), 3) == [3]
    assert game.threatened_columns(after(4, 1, 4, 2, 4)) == [3]


def test_ties_are_left_to_chance_only_where_nothing_is_decided():
    assert len(game.good_columns(game.Position(), 2)) > 1
    assert game.good_columns(after(1, 4, 1, 4, 1), 2) == [0]


def test_the_board_is_drawn_from_above():
    rows = game.draw(*after(4, 4)).splitlines()
    assert rows[-1] == "1 2 3 4 5 6 7"
    assert rows[-2] == ". . . X . . ."
    assert rows[-3] == ". . . O . . ."


async def test_overlooking_a_win_is_punished_once_and_an_invalid_move_too(serve: Serve):
    async with serve(load_package("connect_four")) as server, server.session() as session:
        await session.reset(heldout(0), timeout=10)
        seen = []
        while len(seen) < 24 and (not seen or not seen[-1].done):
            scripts = (await session.state(timeout=10))["scripts"]
            seen.append(await step(session, column=int(scripts["wrong"][6])))
        punished = [answer.rewards["overlooked"] for answer in seen]
        assert punished.count(-1.0) == 1
        again = await session.reset(heldout(0), timeout=10)
        assert again.fields["message"] == "You start."
        assert (await step(session, column=9)).rewards == {"win": 0.0, "overlooked": 0.0, "invalid_move": -1.0}
        assert (await step(session, column=0)).rewards["invalid_move"] == 0.0


@pytest.mark.slow
async def test_the_same_task_and_moves_meet_the_same_replies(serve: Serve):
    first = [[s.observation for s in r.steps] for r in await play(serve, "connect_four", "teacher", level=1, tasks=4)]
    again = [[s.observation for s in r.steps] for r in await play(serve, "connect_four", "teacher", level=1, tasks=4)]
    assert first == again


@pytest.mark.slow
async def test_gold_beats_chance_every_time_and_the_worst_moves_never_win(serve: Serve):
    assert await rewards_of(serve, "connect_four", "gold", level=0) == [pytest.approx(1.2)] * 12
    assert max(await rewards_of(serve, "connect_four", "wrong", level=3)) == pytest.approx(0.0)
