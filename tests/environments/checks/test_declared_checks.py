"""Checks are declared once; the documentation, certificates and their order come from the declarations."""

import re

from scripts.reference import checks
from workers.environments.checks.registry import CHECKS


def test_the_documentation_lists_every_check() -> None:
    assert [check.id for check in CHECKS] == re.findall(r"^\| \[`(\w+)`\]\(#\1\) \|", checks(), re.MULTILINE)


def test_each_check_has_texts_and_needs_only_earlier_ones() -> None:
    seen: set[str] = set()
    for check in CHECKS:
        assert check.id not in seen
        assert set(check.needs) <= seen
        assert check.label
        assert check.sentence.endswith(".")
        assert check.advice.endswith(".")
        assert check.method.endswith(".")
        seen.add(check.id)


def test_themes_follow_one_another() -> None:
    themes = [check.theme for check in CHECKS]
    assert list(dict.fromkeys(themes)) == [
        theme for number, theme in enumerate(themes) if not number or themes[number - 1] != theme
    ]
