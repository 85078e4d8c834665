"""How the processes of one training run talk: rank 0 leads, the others follow.

The leader alone knows the database, decides, and stores. What it says travels as JSON over gloo, on loopback and beside
the trainer's own exchange of gradients, so that a follower may wait for hours without a collective running out of time.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""Followers wait while the leader plays examinations or gathers lessons. That it lives is watched otherwise."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among those of a run. Alone, it leads and nobody listens."""

    number: int = 0
    count: int = 1
    group: Any = None

    @property
    def leads(self) -> bool:
        return self.number == 0

    @property
    def _followers(self) -> range:
        return range(1, self.count)

    def tell(self, value: Any) -> None:
        """Of the leader, to all."""
        self.deal([value] * self.count)

    def deal(self, values: Sequence[Any]) -> Any:
        """Of the leader: to each rank its own. Returns the leader's."""
        for number in self._followers:
            self._send(number, values[number])
        return values[0]

    def hear(self) -> Any:
        """Of a follower: what the leader says next."""
        return self._receive(0)

    def gather(self, value: T) -> list[T]:
        """From all, in their order, to the leader; a follower gets nothing back."""
        if self.leads:
            return [value, *(self._receive(number) for number in self._followers)]
        self._send(0, value)
        return []

    def agree(self, decide: Callable[[], T]) -> T:
        """What the leader decides, on every rank. Followers do not call `decide`."""
        if not self.leads:
            return self.hear()  # type: ignore[no-any-return]
        value = decide()
        self.tell(value)
        return value

    def shares(self, whole: int) -> list[slice]:
        """By rank: which of so many things, which divide evenly, are its own."""
        own = whole // self.count
        return [slice(number * own, (number + 1) * own) for number in range(self.count)]

    def _send(self, number: int, value: Any) -> None:
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        distributed.send(torch.tensor([len(content)]), number, group=self.group)
        distributed.send(content, number, group=self.group)

    def _receive(self, number: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        distributed.recv(size, number, group=self.group)
        content = torch.empty(int(size), dtype=torch.uint8)
        distributed.recv(content, number, group=self.group)
        return json.loads(content.numpy().tobytes())


ALONE = Ranks()
