"""Reading forms, writing numbers."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, StringConstraints
from starlette.datastructures import FormData

from backend.errors import InvalidInput
from backend.web import formats, svg
from backend.web.field_messages import validate
from backend.web.form_data import form_fields, parse_form
from backend.web.templating import templates


class Order(BaseModel):
    name: str
    amount: int = 3
    tags: list[str] = []
    is_urgent: bool = False


def test_an_empty_field_takes_the_default_and_repeated_ones_make_a_list() -> None:
    form = FormData([("name", "x"), ("amount", ""), ("tags", "a"), ("tags", ""), ("tags", "b")])
    assert parse_form(Order, form) == Order(name="x", amount=3, tags=["a", "b"])


def test_a_checkbox_counts_only_when_sent() -> None:
    assert parse_form(Order, FormData([("name", "x"), ("is_urgent", "true")])).is_urgent
    assert not parse_form(Order, FormData([("name", "x")])).is_urgent


def test_what_is_wrong_is_named_by_field() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_form(Order, FormData([("amount", "many")]))
    assert caught.value.fields["name"] == "Fill this in."
    assert caught.value.fields["amount"] == "Enter a whole number."


class Limited(BaseModel):
    name: Annotated[str, StringConstraints(min_length=2, max_length=4, pattern="^[a-z]+$")] = "abc"
    share: float = Field(0.5, gt=0, le=1)
    count: int = Field(1, ge=1, lt=9)
    color: Literal["red", "blue"] = "red"
    owner: uuid.UUID | None = None
    tags: list[str] = Field([], max_length=1)


def test_the_browser_asks_for_the_least_number_of_characters() -> None:
    assert [field.min_length for field in form_fields(Limited)] == [2, *[None] * 5]
    forms = templates().get_template("ui/forms.html").module
    assert 'minlength="2"' in str(forms.fields(Limited, only=["name"]))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"name": "a"}, "Write at least 2 characters."),
        ({"name": "abcde"}, "Write at most 4 characters."),
        ({"name": "A1"}, "This does not have the required form."),
        ({"share": "0"}, "Enter more than 0."),
        ({"share": "2"}, "Enter 1 or less."),
        ({"share": "half"}, "Enter a number."),
        ({"count": "0"}, "Enter 1 or more."),
        ({"count": "9"}, "Enter less than 9."),
        ({"count": "1.5"}, "Enter a whole number."),
        ({"color": "green"}, "Choose 'red' or 'blue'."),
        ({"owner": "me"}, "This is not an id."),
        ({"tags": ["a", "b"]}, "Choose at most 1."),
    ],
)
def test_people_read_a_sentence_and_no_regular_expression(sent: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate(Limited, sent)
    assert list(caught.value.fields.values()) == [sentence]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (59, "59 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
        (3600, "1 h"),
        (None, "–"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.500"), (1234567, "1,234,567"), (-0.25, "−0.250"), (-1234.5, "−1,234"), (None, "–"), (float("nan"), "–")],
)
def test_numbers_line_up(value: float | None, text: str) -> None:
    assert formats.number(value) == text


def test_times_are_reported_from_now() -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    spans = [timedelta(seconds=5), timedelta(minutes=3), timedelta(hours=5), timedelta(days=3), timedelta(days=60)]
    told = [formats.ago(now - span, now) for span in spans]
    assert told == ["just now", "3 min ago", "5 h ago", "3 d ago", "2026-09-22"]
    assert formats.ago(now + timedelta(hours=2), now) == "in 2 h"


def test_a_line_breaks_where_a_value_is_missing() -> None:
    assert len(svg.polyline([1, 2, None, 3, float("nan")], 100, 20)) == 2
    assert svg.polyline([], 100, 20) == []
    assert svg.polyline([1.0], 100, 20) == ["2.0,10.0"]


def test_every_value_falls_into_one_bin() -> None:
    values = [0.0, 0.1, 0.5, 1.0, 1.0, None]
    assert sum(bar.value for bar in svg.histogram(values, 100, 20, 7)) == 5
    assert svg.histogram([None], 100, 20, 7) == []
    assert sum(bar.value for bar in svg.histogram([3.0, 3.0], 100, 20, 7)) == 2
