"""Bounds of stored values."""

import orjson

from workers.rollouts.limits import (
    CUT,
    MAX_EPISODE_BYTES,
    MAX_STORED_BYTES,
    MIN_BYTES,
    ObservationBudget,
    bounded_text,
)


def test_small_ones_are_kept_as_they_are() -> None:
    fields = {"board": "." * 100}
    assert ObservationBudget().observation(fields) is fields
    assert bounded_text("short") == "short"


def test_large_values_are_cut_and_small_ones_kept() -> None:
    cut = ObservationBudget().observation({"note": "small", "page": "é" * 200_000, "grid": [[1] * 1000] * 1000})
    assert cut["note"] == "small"
    assert "cut from" in cut[CUT]
    assert "more characters were cut" in cut["page"]
    assert len(orjson.dumps(cut)) <= MAX_STORED_BYTES


def test_very_many_fields_are_cut_too() -> None:
    cut = ObservationBudget().observation({f"field {number}": "x" * 100 for number in range(100_000)})
    assert len(orjson.dumps(cut)) <= MAX_STORED_BYTES


def test_values_that_are_hard_to_encode_are_measured_all_the_same() -> None:
    fields = {"half": "\ud800", "large": 10**30}
    assert ObservationBudget().observation(fields) is fields
    assert CUT in ObservationBudget().observation({"half": "\ud800" * 100_000})


def test_a_long_episode_keeps_little_of_its_later_observations() -> None:
    shelf = ObservationBudget()
    kept = [len(orjson.dumps(shelf.observation({"page": "x" * 60_000}))) for _ in range(200)]
    assert kept[0] > 60_000
    assert kept[-1] <= MIN_BYTES
    assert sum(kept) < 1.1 * MAX_EPISODE_BYTES
