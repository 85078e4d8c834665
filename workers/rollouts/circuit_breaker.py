"""The circuit breaker: when most of the recent rollouts fail, going on only burns through the run."""

from collections import Counter, deque

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import RolloutStatus


class TooManyFailures(Exception):
    """Most of the recent rollouts failed."""


class CircuitBreaker:
    """Looks at the last `window` rollouts once there are `at_least` of them."""

    def __init__(self, *, window: int = 50, at_least: int = 16, share: float = 0.5) -> None:
        self._recent: deque[str | None] = deque(maxlen=window)
        self._at_least = at_least
        self._share = share

    def record(self, rollout: Rollout) -> None:
        """Raises TooManyFailures with the share and the most common error."""
        failed = rollout.status is RolloutStatus.FAILED
        self._recent.append(f"{rollout.error_kind}: {rollout.error_message}" if failed else None)
        if failed and len(self._recent) >= self._at_least:
            self._judge()

    def _judge(self) -> None:
        errors = [error for error in self._recent if error is not None]
        if len(errors) > self._share * len(self._recent):
            [(error, count)] = Counter(errors).most_common(1)
            raise TooManyFailures(
                f"{len(errors)} of the last {len(self._recent)} rollouts failed"
                f" ({len(errors) / len(self._recent):.0%}). Most often ({count}×) {error}"
            )
