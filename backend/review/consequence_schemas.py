"""What people send about consequences."""

from typing import Annotated

from pydantic import BaseModel, Field

Bound = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class KeepForm(BaseModel):
    """A fixture out of a judged rollout."""

    bound: Bound | None = None
    """Left out: of a hack the version's floor, of an honest episode what it earned. Authors may say another."""


class BoundForm(BaseModel):
    bound: Bound


class WithdrawForm(BaseModel):
    because: Annotated[str, Field(max_length=500)] = ""
