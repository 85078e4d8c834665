"""Whose turn it is: things that come as often as their shares, spread evenly (smooth weighted round robin)."""

from collections.abc import Sequence


class Turns:
    """Any stretch of turns has the shares as nearly as whole numbers allow. The credit is all that has to be kept."""

    def __init__(self, shares: Sequence[float], credit: Sequence[float] | None = None) -> None:
        self.shares = list(shares)
        self.credit = list(credit) if credit is not None else [0.0] * len(self.shares)

    def next(self) -> int:
        """The place of the next one in the list of shares."""
        self.credit = [have + share for have, share in zip(self.credit, self.shares, strict=True)]
        chosen = max(range(len(self.credit)), key=self.credit.__getitem__)
        self.credit[chosen] -= sum(self.shares)
        return chosen
