"""How many episodes are in flight: as many as were allowed, fewer while the endpoint or the env servers show strain."""

from collections.abc import Callable

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import ErrorKind
from workers.policies.adaptive_limit import Effort
from workers.policies.gates import Gate

_STRAIN = frozenset({ErrorKind.SANDBOX, ErrorKind.LIMIT})
"""What a server that bears no more ends episodes with: a lost connection, a deadline."""


class ConcurrencyLimiter:
    """A gate for episodes. Of an endpoint's effort, and of what is seen of the env servers, the smaller one counts."""

    def __init__(self, ceiling: int, policy: Effort | None, on_limit: Callable[[int], None]) -> None:
        self.ceiling = max(1, ceiling)
        self._servers = Effort(self.ceiling, first=self.ceiling)
        self._policy = policy
        self._on_limit = on_limit
        if policy is not None:
            policy.bound(self.ceiling)
        self.gate = Gate(self.limit)
        for effort in (self._servers, policy):
            if effort is not None:
                effort.on_change = self._changed
        on_limit(self.limit)

    @property
    def limit(self) -> int:
        return min(self._servers.limit, self._policy.limit if self._policy else self.ceiling)

    def saw(self, rollout: Rollout) -> None:
        if rollout.error_kind in _STRAIN:
            self._servers.strained()
        elif rollout.is_completed and rollout.steps:
            self._servers.ended(rollout.environment_seconds / len(rollout.steps))

    def _changed(self, _: int) -> None:
        self.gate.limit = self.limit
        self._on_limit(self.limit)
