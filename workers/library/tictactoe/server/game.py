"""The rules of tic-tac-toe and perfect play. A board is nine characters: `X`, `O` or `.`."""

from functools import cache

EMPTY = "." * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def put(board: str, index: int, mark: str) -> str:
    return board[:index] + mark + board[index + 1 :]


@cache
def free(board: str) -> tuple[int, ...]:
    return tuple(index for index, mark in enumerate(board) if mark == ".")


@cache
def winner(board: str) -> str | None:
    for first, second, third in LINES:
        if board[first] != "." and board[first] == board[second] == board[third]:
            return board[first]
    return None


@cache
def value(board: str, mark: str) -> int:
    """For X, with perfect play from here and `mark` to move: 0 is a draw; the sooner a win, the larger."""
    if won := winner(board):
        return (1 + len(free(board))) * (1 if won == "X" else -1)
    values = [value(put(board, index, mark), _other(mark)) for index in free(board)]
    return (max if mark == "X" else min)(values, default=0)


@cache
def best_replies(board: str) -> tuple[int, ...]:
    """O's perfect moves: all of equal value."""
    values = {index: value(put(board, index, "O"), "X") for index in free(board)}
    return tuple(index for index in values if values[index] == min(values.values()))


@cache
def gold_move(board: str) -> int:
    """X's perfect move; among equals, the best against an opponent who makes mistakes."""
    outcomes = {index: _sign(value(put(board, index, "X"), "O")) for index in free(board)}
    perfect = [index for index in outcomes if outcomes[index] == max(outcomes.values())]
    return max(perfect, key=lambda index: _hope(put(board, index, "X")))


@cache
def worst_move(board: str) -> int:
    """X's legal move that is worth least, with perfect play from there."""
    return min(free(board), key=lambda index: value(put(board, index, "X"), "O"))


@cache
def _hope(board: str) -> float:
    """X's expected score if O, to move, plays at random and X continues perfectly."""
    if winner(board):
        return 1.0
    replies = [put(board, index, "O") for index in free(board)]
    return sum(map(_hope_after_reply, replies)) / len(replies) if replies else 0.5


def _hope_after_reply(board: str) -> float:
    if winner(board):
        return 0.0
    return _hope(put(board, gold_move(board), "X")) if free(board) else 0.5


def completing_move(board: str, mark: str) -> int | None:
    """A free cell that completes a line of `mark`, if there is one."""
    return next((index for index in free(board) if winner(put(board, index, mark)) == mark), None)


def draw(board: str) -> str:
    """Three lines; free cells show their number."""
    cells = [str(index + 1) if mark == "." else mark for index, mark in enumerate(board)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


def _other(mark: str) -> str:
    return "O" if mark == "X" else "X"


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
