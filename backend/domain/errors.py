"""Failures of a rollout, attributed to the boundary that broke. A bad rollout is data; a bad job is an incident.

RolloutError
├── PolicyError      the policy did not answer
├── EnvError         the environment raised, disconnected or returned garbage
│   └── ActionRefused    the action's form was refused: the policy is notified, the rollout continues
├── SandboxError     the env host or its sandbox failed
├── JudgeError       a model judge failed
└── LimitExceeded    a deadline or a size limit was crossed
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from backend.domain.vocabulary import ErrorKind


class RolloutError(Exception):
    """The infrastructure failed; the policy is not to blame."""

    kind: ClassVar[ErrorKind] = ErrorKind.ENVIRONMENT
    is_retryable: ClassVar[bool] = True

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.__class__.__doc__)


class PolicyError(RolloutError):
    """The policy did not answer."""

    kind = ErrorKind.POLICY


class EnvError(RolloutError):
    """The environment failed."""

    kind = ErrorKind.ENVIRONMENT


class ActionRefused(EnvError):
    """The environment refused the form of the action."""

    is_retryable = False


class SandboxError(RolloutError):
    """The environment's server could not be reached or kept."""

    kind = ErrorKind.SANDBOX


class JudgeError(RolloutError):
    """The judge did not give a verdict."""

    kind = ErrorKind.JUDGE


class LimitExceeded(RolloutError):
    """A limit was crossed."""

    kind = ErrorKind.LIMIT
    is_retryable = False


@asynccontextmanager
async def boundary(error: type[RolloutError], what: str) -> AsyncIterator[None]:
    """Attribute anything that breaks inside to `error`; errors that are already attributed pass through."""
    try:
        yield
    except RolloutError:
        raise
    except TimeoutError as cause:
        raise error(f"{what}: no answer within the deadline") from cause
    except Exception as cause:
        raise error(f"{what}: {type(cause).__name__}: {cause}") from cause
