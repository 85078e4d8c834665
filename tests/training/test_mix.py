"""Further environments of a training run, as text, and what is divided among them."""

import pytest
from pydantic import ValidationError

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import MixPart, portions, union_columns
from tests.factories import make_manifest


@pytest.mark.parametrize(
    ("text", "version", "weight", "written"),
    [
        ("reverse_text", None, 1.0, "reverse_text=1"),
        ("reverse_text@3", 3, 1.0, "reverse_text@3=1"),
        ("reverse_text=0.5", None, 0.5, "reverse_text=0.5"),
        (" reverse_text@3=2e-1 ", 3, 0.2, "reverse_text@3=0.2"),
    ],
)
def test_a_part_is_a_name_with_a_version_and_a_weight(
    text: str, version: int | None, weight: float, written: str
) -> None:
    part = MixPart.model_validate(text)
    assert (part.environment, part.version, part.weight) == ("reverse_text", version, weight)
    assert str(part) == written
    assert MixPart.model_validate(written) == part


@pytest.mark.parametrize("text", ["", "Reverse", "a@b", "a@0", "a=-1", "a=0", "a=nan", "a=inf", "a=x", "a@1=1=1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        MixPart.model_validate(text)


@pytest.mark.parametrize(
    "told", ["a@1=2, b", ["a@1=2", "b"], ["a@1=2 b"], [{"environment": "a", "version": 1, "weight": 2}, "b"]]
)
def test_a_configuration_takes_texts_lists_and_json(told: object) -> None:
    configuration = TrainingConfiguration.model_validate({"mix": told})
    assert configuration.resolved()["mix"] == ["a@1=2", "b=1"]
    assert TrainingConfiguration.of_run(configuration.resolved()) == configuration


def test_an_old_runs_configuration_has_no_mix() -> None:
    stored = {name: value for name, value in TrainingConfiguration().resolved().items() if name != "mix"}
    assert TrainingConfiguration.of_run(stored).mix == []


@pytest.mark.parametrize(
    ("weights", "count", "given"),
    [([1.0], 7, [7]), ([1, 0.5], 9, [6, 3]), ([1, 1, 1], 4, [2, 1, 1]), ([1, 0.01], 10, [9, 1]), ([1, 1], 1, [1, 0])],
)
def test_portions_follow_the_weights_and_leave_no_one_out(weights: list[float], count: int, given: list[int]) -> None:
    assert portions(weights, count) == given


def test_columns_are_united_in_declared_order() -> None:
    manifests = [make_manifest("one", {"win": 1.0, "format": 0.2}), make_manifest("two", {"format": 3.0, "near": 0.1})]
    assert [(each.name, each.weight) for each in union_columns(manifests)] == [
        ("win", 1.0),
        ("format", 0.2),
        ("near", 0.1),
    ]
