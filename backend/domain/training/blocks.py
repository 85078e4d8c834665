"""What the blocks of a training run's configuration have in common.

The docstring beneath a field is its help in the launch form, the JSON API and the command line.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Share = Annotated[float, Field(ge=0, le=1)]


class Block(BaseModel):
    """Some choices that belong together. A name that is not known is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
