"""Attribute docstrings describe the fields of requests and responses, as they would with Pydantic's own reader."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, ClassVar, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

import backend.app  # noqa: F401 - all models
from backend.domain.described import Described


class Read(Described):
    """Text."""

    limit: ClassVar[int] = 3
    """Not a field."""
    plain: int
    """One line."""
    several: Annotated[list[str], Field(min_length=1)] = Field(default=["a"])
    """The first line,

    and more."""
    own: int = Field(0, description="Its own.")
    """Not this."""
    nothing: str = ""


class ReadByPydantic(BaseModel):
    """Text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    limit: ClassVar[int] = 3
    """Not a field."""
    plain: int
    """One line."""
    several: Annotated[list[str], Field(min_length=1)] = Field(default=["a"])
    """The first line,

    and more."""
    own: int = Field(0, description="Its own.")
    """Not this."""
    nothing: str = ""


class Narrower(
    Read,
    frozen=True,
):
    plain: int = 3
    """Another line."""


def test_fields_are_described_as_pydantic_does() -> None:
    read, by_pydantic = Read.model_json_schema(), ReadByPydantic.model_json_schema()
    assert read["properties"] == by_pydantic["properties"]
    assert read["properties"]["several"]["description"] == "The first line,\n\nand more."
    fields = Narrower.model_fields
    assert (fields["plain"].description, fields["own"].description) == ("Another line.", "Its own.")


@pytest.mark.slow
def test_dataclasses_in_responses_describe_their_fields_too() -> None:
    found = {each for model in _subclasses(Described) for each in _dataclasses_in(model)}
    assert len(found) > 10
    pydantics = ConfigDict(use_attribute_docstrings=True)
    for each in found:
        plain, described = (create_model("Holder", __config__=config, held=(each, ...)) for config in (None, pydantics))
        same = plain.model_json_schema() == described.model_json_schema()
        assert same, f"decorate {each.__module__}.{each.__name__} with `described`"


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield each
        yield from _subclasses(each)


def _dataclasses_in(model: type[BaseModel]) -> Iterator[type]:
    annotations: list[object] = [field.annotation for field in model.model_fields.values()]
    while annotations:
        annotation = annotations.pop()
        annotations += get_args(annotation)
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            yield annotation
