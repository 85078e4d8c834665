"""The base of the client's models."""

from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr


class Model(BaseModel):
    """A response of the server. Fields that a newer server adds are kept as extra attributes."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Job(Model):
    """Work that continues on the server: pass it to `client.wait`."""

    is_finished: bool
    is_successful: bool
    """Whether all of it succeeded."""
    done: int = 0
    total: int | None = None
    """None until it is known."""
    message: str = ""

    _poll_path: str = PrivateAttr("")

    @property
    def poll_path(self) -> str:
        """Address of its current state, below `/api/v1`."""
        return self._poll_path

    def polled_at(self, path: str) -> Self:
        self._poll_path = path
        return self
