"""Where the main navigation says that one is."""

import pytest

from backend.web.page import NAVIGATION, SIDE_DOORS

PLACES = [place for places in NAVIGATION.values() for place in places] + list(SIDE_DOORS)


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/", "Overview"),
        ("/runs/0190/groups", "Runs"),
        ("/rollouts/0190/beside/0191", "Runs"),
        ("/evaluations/new", "Runs"),
        ("/rescores/0190", "Runs"),
        ("/graders/new", "Graders"),
        ("/data/sft", "Training data"),
        ("/training/examples", "Training data"),
        ("/training/examples/0190", "Training data"),
        ("/training/new", "Training"),
        ("/sweeps/new", "Training"),
        ("/exports/0190", "Checkpoints"),
        ("/leaderboards/wordle", "Leaderboards"),
    ],
)
def test_every_page_is_at_one_place(path: str, label: str) -> None:
    assert [place.label for place in PLACES if place.is_at(path)] == [label]


def test_a_page_of_nowhere_marks_no_place() -> None:
    assert not [place.label for place in PLACES if place.is_at("/help/filters")]
