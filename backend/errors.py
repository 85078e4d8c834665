"""Errors with a message for people. Raised in services, rendered once in `web/error_pages.py`."""

from collections.abc import Mapping


class AppError(Exception):
    """Something went wrong."""

    status = 500
    keeps_changes = False
    """Whether the refused request's transaction is committed: a counted attempt, an audit event."""

    def __init__(self, message: str = "") -> None:
        self.message = message or (self.__doc__ or "").strip()
        super().__init__(self.message)


class NotFound(AppError):
    """There is nothing here."""

    status = 404


class NotSignedIn(AppError):
    """Sign in first."""

    status = 401


class NotAllowed(AppError):
    """Your role does not allow this."""

    status = 403


class Conflict(AppError):
    """Someone changed this in the meantime."""

    status = 409


class InvalidInput(AppError):
    """Some fields are invalid."""

    status = 422

    def __init__(self, message: str = "", fields: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.fields = dict(fields or {})
        """Error messages by field."""


class TooManyRequests(AppError):
    """Too many attempts. Wait a minute and try again."""

    status = 429
    keeps_changes = True

    def __init__(self, message: str = "", retry_after_seconds: int = 60) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
