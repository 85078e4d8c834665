"""Self-play: its settings, and the league of past checkpoints with their ratings."""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from backend.domain.training.blocks import Block, setting

FIRST_RATING = 1000.0
GAIN_PER_GAME, MAX_GAIN = 4.0, 32.0
CURVES = "league/"
"""Prefix of the curves that hold a league: `league/rating`, and `league/<member>/rating`, `/games` and `/points`."""


class SelfPlayChoice(Block):
    """Train one seat of a game against past checkpoints of the same run."""

    title: ClassVar[str] = "Self-play"
    only: ClassVar[str] = "recipe=sft_then_grpo|grpo"

    every: int = setting(0, "Steps between opponents", ge=0, le=1_000_000)
    """A checkpoint joins the opponents every this many GRPO steps. 0: no self-play; the environment's own script takes
    the other seats. Only for environments that declare seats. Use 10 to 50: fewer steps give opponents that differ
    less."""
    opponents: int = setting(8, only="self_play.every!=0", ge=2, le=32)
    """Maximum number of opponents, including the policy before GRPO, which always stays. Beyond it, the one with the
    lowest rating leaves. Each is held in memory. More opponents keep the policy from forgetting how to beat old
    ones."""


@dataclass(slots=True)
class LeagueMember:
    """An opponent: a frozen checkpoint."""

    name: str
    """`grpo 40`"""
    rating: float = FIRST_RATING
    games: int = 0
    points: float = 0.0
    """Scores of the policy in training against it: 1 for a win, 0.5 for a draw."""


@dataclass(slots=True)
class League:
    """Elo ratings of the policy in training and its opponents.

    The expected score against an opponent is E = 1 / (1 + 10^((R_opponent - R) / 400)) (Elo, The Rating of
    Chessplayers, 1978). A step with n games and mean score s against it moves both ratings by min(4 n, 32) (s - E), in
    opposite directions. The first member is the policy before training: its rating is fixed, so that the scale keeps
    its meaning.

    An opponent is drawn with a chance proportional to E (1 - E), so most often one of equal strength, and rarely one
    that always loses or always wins: both teach little (the variance weighting of prioritized fictitious self-play,
    AlphaStar, Vinyals et al. 2019).
    """

    members: list[LeagueMember]
    rating: float = FIRST_RATING
    most: int = field(default=8, compare=False)

    def expected(self, member: LeagueMember) -> float:
        return float(1 / (1 + 10 ** ((member.rating - self.rating) / 400)))

    def chances(self) -> list[float]:
        """The chance of each member to be drawn."""
        weights = [expected * (1 - expected) for expected in map(self.expected, self.members)]
        return [weight / sum(weights) for weight in weights]

    def standings(self) -> list[tuple[LeagueMember, float]]:
        """Members with their chances to be drawn, the strongest first."""
        return sorted(zip(self.members, self.chances(), strict=True), key=lambda pair: -pair[0].rating)

    def draw(self, chance: random.Random) -> LeagueMember:
        return chance.choices(self.members, self.chances())[0]

    def record(self, games: Iterable[tuple[str, float]]) -> None:
        """Update the ratings from a step's games: the opponent's name and the score of the policy in training."""
        scores = defaultdict[str, list[float]](list)
        for name, score in games:
            scores[name].append(score)
        changes = []
        for member in self.members:
            if played := scores.get(member.name):
                gain = min(GAIN_PER_GAME * len(played), MAX_GAIN)
                changes.append((member, gain * (sum(played) / len(played) - self.expected(member))))
                member.games += len(played)
                member.points += sum(played)
        for member, change in changes:
            self.rating += change
            if member is not self.members[0]:
                member.rating -= change

    def join(self, name: str) -> list[str]:
        """Add the policy as it is now, with its rating. Returns the names of members that leave, the weakest first.

        The first and the new member stay.
        """
        if any(member.name == name for member in self.members):
            return []
        self.members.append(LeagueMember(name, self.rating))
        left = []
        while len(self.members) > self.most:
            weakest = min(self.members[1:-1], key=lambda member: member.rating)
            self.members.remove(weakest)
            left.append(weakest.name)
        return left

    def figures(self) -> dict[str, float]:
        """The league as points of curves, from which `of` reads it."""
        figures = {f"{CURVES}rating": self.rating}
        for place, member in enumerate(self.members):
            of_member = {"rating": member.rating, "games": member.games, "points": member.points, "place": place}
            figures |= {f"{CURVES}{member.name}/{name}": float(value) for name, value in of_member.items()}
        return figures

    @classmethod
    def of(cls, figures: Mapping[str, float], most: int = 8) -> "League | None":
        """Read the league from its points at one step; None if they hold none."""
        values = defaultdict[str, dict[str, float]](dict)
        for name, value in figures.items():
            member, _, of_member = name.removeprefix(CURVES).rpartition("/")
            if name.startswith(CURVES) and member:
                values[member][of_member] = value
        if f"{CURVES}rating" not in figures or not values:
            return None
        members = [
            LeagueMember(name, each["rating"], round(each["games"]), each["points"])
            for name, each in sorted(values.items(), key=lambda pair: pair[1]["place"])
        ]
        return cls(members, figures[f"{CURVES}rating"], most)
