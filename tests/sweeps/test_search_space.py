"""The values that a parameter may take."""

import pytest

from backend.domain.sweeps.space import Axis, Parameter, grid_points, grid_size, probe_points


def test_a_range_has_evenly_spaced_points_on_its_scale() -> None:
    assert Axis(low=1e-5, high=1e-3, log=True, points=3).grid() == [1e-5, 1e-4, 1e-3]
    assert Axis(low=0, high=1, points=5).grid() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Axis(low=1, high=4, points=9, is_whole=True).grid() == [1, 2, 3, 4]


def test_a_list_stands_for_its_values() -> None:
    assert Parameter.model_validate([4, 8]) == Parameter(values=[4, 8])


def test_sampled_numbers_are_short_and_stay_inside_of_the_range() -> None:
    axis = Axis(low=0.00012345, high=0.9)
    assert axis.rounded(0.1234567) == 0.1235
    assert axis.rounded(0.0001) == 0.00012345
    assert Axis(low=1, high=9, is_whole=True).rounded(3.7) == 4


@pytest.mark.parametrize(
    ("parameter", "word"),
    [
        (Parameter(low=2, high=1), "empty"),
        (Parameter(low=1, high=1), "empty"),
        (Parameter(low=1), "lowest and the highest"),
        (Parameter(values=[1], low=1), "not both"),
        (Parameter(values=[1, 1]), "twice"),
        (Parameter(low=0, high=1, log=True), "above 0"),
        (Parameter(low=0.5, high=2), "whole numbers"),
    ],
)
def test_ranges_that_have_no_value_are_named(parameter: Parameter, word: str) -> None:
    assert word in parameter.problem(is_number=True, is_whole=True)


def test_settings_that_are_no_numbers_have_no_range() -> None:
    assert "List its values" in Parameter(low=0, high=1).problem(is_number=False, is_whole=False)


def test_a_grid_has_every_combination() -> None:
    space = {"a": Axis(values=["x", "y"]), "b": Axis(low=0, high=1, points=3)}
    points = list(grid_points(space))
    assert grid_size(space) == len(points) == 6
    assert points[0] == {"a": "x", "b": 0.0}
    assert grid_size({"a": Axis(low=0, high=1)}) == 0


def test_probes_are_the_same_every_time() -> None:
    space = {"a": Axis(values=[None, "x"]), "b": Axis(low=1, high=100, log=True, is_whole=True)}
    assert probe_points(space, 5) == probe_points(space, 5)
    assert all(1 <= point["b"] <= 100 for point in probe_points(space, 20))  # type: ignore[operator]
