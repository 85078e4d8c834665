"""Proctor shows its main jobs, each from empty data to its end, as a script would do it."""

from enum import StrEnum


class Story(StrEnum):
    """What is shown."""

    TICTACTOE = "tictactoe"
    HACKED_REWARD = "hacked-reward"
