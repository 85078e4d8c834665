"""Where time goes."""

import time

import pytest

from workers.training.trl_base import Clock

TICK = 0.02


def test_each_moment_is_counted_once_by_the_innermost_thing() -> None:
    clock = Clock()
    began = time.perf_counter()
    with clock.counts("backward"):
        time.sleep(TICK)
        with clock.counts("forward"):
            time.sleep(3 * TICK)
        clock.begin()
        time.sleep(TICK)
        clock.end("optimiser")
    whole = time.perf_counter() - began
    taken = clock.take()
    assert sum(taken.values()) == pytest.approx(whole, abs=TICK)
    assert taken["forward"] >= 3 * TICK
    assert taken["optimiser"] >= TICK
    assert taken["backward"] >= TICK
    assert taken["idle"] == 0.0
    assert clock.take() == {}


def test_what_fails_is_counted_too() -> None:
    clock = Clock()

    def fail() -> None:
        with clock.counts("reward"):
            time.sleep(TICK)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert clock.take()["reward"] >= TICK
