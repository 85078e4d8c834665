"""Expensive reads: one for all concurrent readers, less often the longer they take, and every reader gets an answer."""

import threading
import time

import pytest

from backend.web.shared import REST, SHORT_SECONDS, Shared


class Costly:
    """A read that counts itself."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.count = seconds, 0

    def __call__(self) -> int:
        time.sleep(self.seconds)
        self.count += 1
        return self.count


def test_what_was_read_after_the_news_is_not_read_again() -> None:
    shared, costly, since = Shared[int](), Costly(), time.monotonic()
    assert [shared.read("run", since, costly) for _ in range(3)] == [(1, 0.0)] * 3


def test_keys_are_apart() -> None:
    shared, costly, since = Shared[int](), Costly(), time.monotonic()
    assert [shared.read(key, since, costly)[0] for key in ("a", "b", "a")] == [1, 2, 1]


def test_many_who_begin_at_once_wait_for_one_or_two_reads() -> None:
    shared, costly = Shared[int](), Costly(0.05)
    together = threading.Barrier(20)
    answers: list[tuple[int, float]] = []

    def ask() -> None:
        together.wait()
        answers.append(shared.read("run", time.monotonic(), costly))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert costly.count <= 2
    assert {again for _, again in answers} == {0.0}


@pytest.mark.parametrize(("first_seconds", "expected"), [(0.0, 2), (1.2 * SHORT_SECONDS, 1)])
def test_a_read_of_another_page_is_waited_for_if_the_last_was_short(first_seconds: float, expected: int) -> None:
    shared, costly, began = Shared[int](), Costly(first_seconds), threading.Event()
    shared.read("run", time.monotonic(), costly)
    costly.seconds = 0.02

    def begin() -> int:
        began.set()
        return costly()

    since = time.monotonic()
    reader = threading.Thread(target=shared.read, args=("run", since, begin), kwargs={"is_urgent": True})
    reader.start()
    began.wait()
    value, again = shared.read("run", since, costly)
    assert (value, again > 0) == (expected, expected == 1)
    reader.join()


def test_news_in_the_rest_is_told_to_come_again() -> None:
    shared, costly = Shared[int](), Costly(0.1)
    shared.read("run", time.monotonic(), costly)
    since = time.monotonic()
    value, again = shared.read("run", since, costly)
    assert value == 1
    assert 0 < again <= REST * 0.3
    time.sleep(again)
    assert shared.read("run", since, costly) == (2, 0.0)


def test_what_is_urgent_is_read_at_once() -> None:
    shared, costly = Shared[int](), Costly(0.1)
    shared.read("run", time.monotonic(), costly)
    assert shared.read("run", time.monotonic(), costly, is_urgent=True) == (2, 0.0)


def test_a_read_that_fails_is_done_by_the_next() -> None:
    shared, since = Shared[int](), time.monotonic()

    def fails() -> int:
        raise ValueError("no database")

    with pytest.raises(ValueError, match="no database"):
        shared.read("run", since, fails)
    assert shared.read("run", since, Costly()) == (1, 0.0)
