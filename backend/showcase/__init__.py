"""Showcases of `proctor demo`: each runs one of Proctor's main workflows through the JSON API, as a script would."""

from enum import StrEnum


class Story(StrEnum):
    TICTACTOE = "tictactoe"
    HACKED_REWARD = "hacked-reward"
    INSTRUCT = "instruct"
