"""How many rollouts pass a filter, counted once while nothing that the filter asks about can change.

Pages and orders of one list ask for the same count again and again, and each time it reads the whole run.
"""

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.rollouts.filter_tree import Node, leaves_of
from backend.domain.vocabulary import RunKind
from backend.rollouts.filter_fields import FilterScope, is_said_later
from backend.rollouts.tables import Rollout


@dataclass(frozen=True, slots=True)
class Matching:
    """How many rollouts pass a filter."""

    count: int
    is_more: bool = False
    """There are more: counting ended there, because it reads what was said."""


_Key = tuple[uuid.UUID, int, str]
_kept: OrderedDict[_Key, Matching] = OrderedDict()
_lock = threading.Lock()
MOST_KEPT = 1000


def key_of(session: Session, scope: FilterScope, expression: str, tree: Node | None) -> _Key | None:
    """By what the count is kept; None where it may change while no rollout is added."""
    is_played_by_hand = scope.run.kind is RunKind.PLAY  # its rows change while somebody is at it
    if is_played_by_hand or any(is_said_later(leaf.field.name) for leaf in leaves_of(tree)):
        return None
    newest = session.scalar(select(func.max(Rollout.seq)).where(Rollout.run_id == scope.run.id))
    return scope.run.id, newest or 0, expression


def kept(key: _Key | None) -> Matching | None:
    with _lock:
        if key is None or key not in _kept:
            return None
        _kept.move_to_end(key)
        return _kept[key]


def keep(key: _Key | None, matching: Matching) -> Matching:
    if key is not None:
        with _lock:
            _kept[key] = matching
            if len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
    return matching
