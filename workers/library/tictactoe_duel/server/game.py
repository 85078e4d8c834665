"""The rules of tic-tac-toe and perfect play. A board is nine characters: `X`, `O` or `.`."""

import random
from functools import cache
from zlib import crc32

EMPTY = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
OTHER = {"X": "O", "O": "X"}


def put(board: str, index: int, mark: str) -> str:
    return board[:index] + mark + board[index + 1 :]


def free(board: str) -> tuple[int, ...]:
    return tuple(index for index, mark in enumerate(board) if mark == ".")


def winner(board: str) -> str | None:
    for first, second, third in LINES:
        if board[first] != "." and board[first] == board[second] == board[third]:
            return board[first]
    return None


@cache
def value(board: str, mark: str) -> int:
    """For `mark`, which is to move, with perfect play: 0 is a draw; the sooner a win, the larger."""
    if winner(board):
        return -1 - len(free(board))
    return max((-value(put(board, index, mark), OTHER[mark]) for index in free(board)), default=0)


@cache
def hope(board: str, mark: str) -> float:
    """The score that `mark`, which has moved, expects if the other moves at random and it continues perfectly."""
    if winner(board):
        return 1.0
    replies = [put(board, index, OTHER[mark]) for index in free(board)]
    scores = []
    for reply in replies:
        if winner(reply):
            scores.append(0.0)
        else:
            scores.append(hope(put(reply, gold_move(reply, mark), mark), mark) if free(reply) else 0.5)
    return sum(scores) / len(scores) if scores else 0.5


@cache
def gold_move(board: str, mark: str) -> int:
    """A perfect move; among equals, the best against an opponent who makes mistakes."""
    outcomes = {index: sign(-value(put(board, index, mark), OTHER[mark])) for index in free(board)}
    perfect = [index for index in outcomes if outcomes[index] == max(outcomes.values())]
    return max(perfect, key=lambda index: hope(put(board, index, mark), mark))


def worst_move(board: str, mark: str) -> int:
    """The legal move that is worth least, with perfect play from there."""
    return max(free(board), key=lambda index: value(put(board, index, mark), OTHER[mark]))


def completing_move(board: str, mark: str) -> int | None:
    """A free cell that completes a line of `mark`, if there is one."""
    return next((index for index in free(board) if winner(put(board, index, mark)) == mark), None)


def opening(seed: int, *, is_heldout: bool) -> tuple[str, str]:
    """A board after two or three random moves, and the mark that is to move. One board in five is held out."""
    chance = random.Random(f"opening:{seed}")
    while True:
        board, mark = EMPTY, "X"
        for _ in range(chance.choice((2, 3))):
            board, mark = put(board, chance.choice(free(board)), mark), OTHER[mark]
        if (crc32(board.encode()) % 5 == 0) == is_heldout:
            return board, mark


def draw(board: str) -> str:
    """Three lines; free cells show their number."""
    cells = [str(index + 1) if mark == "." else mark for index, mark in enumerate(board)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


def sign(number: int) -> int:
    return (number > 0) - (number < 0)
