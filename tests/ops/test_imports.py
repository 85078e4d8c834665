"""Imports are checked by kind of file, and circles are found."""

from scripts.check_imports import circles, kind


def test_kinds_are_the_last_word_of_a_slices_file() -> None:
    assert kind("backend.runs.tab_pages") == kind("backend.graders.pages") == "pages"
    assert kind("backend.web.page") == kind("backend.cli.views") == ""


def test_a_circle_is_found_behind_modules_outside_of_it() -> None:
    assert list(circles({"a": ["b"], "b": ["c", "leaf"], "c": ["b"], "leaf": []})) == [["b", "c", "b"]]
    assert not list(circles({"a": ["b", "c"], "b": ["c"], "c": []}))
