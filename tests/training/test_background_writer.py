"""Writing in the background of training: in order, one step behind, and without hiding a failure."""

import threading

import pytest

from workers.training.reporting import BackgroundWriter


def test_it_writes_in_order_while_the_training_continues():
    gate, written = threading.Event(), []
    with BackgroundWriter() as behind:
        behind.write(lambda: gate.wait(10) and written.append(1))
        assert written == []
        gate.set()
        behind.write(lambda: written.append(2))
        behind.wait()
        assert written == [1, 2]


def test_what_went_wrong_is_raised_at_the_next_call():
    with BackgroundWriter() as behind:
        behind.write(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            behind.wait()
        behind.wait()


def test_the_end_waits_for_the_last_step():
    written = []
    with BackgroundWriter() as behind:
        behind.write(lambda: written.append(1))
    assert written == [1]
    with pytest.raises(ZeroDivisionError), BackgroundWriter() as behind:
        behind.write(lambda: 1 / 0)


def test_what_ended_the_training_is_not_hidden_by_it():
    def train() -> None:
        with BackgroundWriter() as behind:
            behind.write(lambda: 1 / 0)
            raise KeyError

    with pytest.raises(KeyError):
        train()
