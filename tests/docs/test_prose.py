"""The check of the English: what it reads and what it finds. `make prose` holds the documentation to it."""

from pathlib import Path

import pytest

from scripts import check_prose
from scripts.check_prose import Text, markdown_texts, misspellings, python_texts, template_texts, unwanted_phrases


def words_of(read: object, path: Path, source: str) -> list[tuple[int, str]]:
    path.write_text(source)
    return [(text.line, text.words) for text in read(path)]  # type: ignore[operator]


def test_markdown_is_read_without_code_and_addresses(tmp_path: Path) -> None:
    source = "# A title\n\n```sh\nwhat is told\n```\nRun `it stands` [here](whose.md).\n\n    indented code\n"
    found = words_of(markdown_texts, tmp_path / "page.md", source)
    assert [(line, words.split()) for line, words in found if words] == [
        (1, ["#", "A", "title"]),
        (6, ["Run", "[here", "."]),
    ]


def test_templates_are_read_as_text_attributes_and_strings_of_macros(tmp_path: Path) -> None:
    source = """<p title="A tip">Some {{ run.name }} text</p>
{# a remark #}{{ ui.button("Run the checks", href="/a b") }}
<script>let whose = 1;</script>
"""
    found = words_of(template_texts, tmp_path / "page.html", source)
    assert sorted(found) == [(1, "A tip"), (1, "Some                text"), (2, "Run the checks")]


def test_python_is_read_as_docstrings_messages_and_help(tmp_path: Path) -> None:
    source = '''"""The module."""
NAME = "not read at all"
LIMIT = 3
"""Below a constant."""
def act(number: int = Option(1, help="Number of tasks")):
    """What it does,

    in two lines."""
    raise Refused(f"Task {number} is missing.", {"key": "A field is wrong"})
'''
    lines = dict(words_of(python_texts, tmp_path / "module.py", source))
    assert lines[1] == "The module."
    assert lines[4] == "Below a constant."
    assert lines[5] == "Number of tasks"
    assert lines[8] == "in two lines."
    assert "not read at all" not in lines.values()
    assert lines[9] in {"A field is wrong", "is missing."}


@pytest.mark.parametrize(
    ("words", "is_found"),
    [
        ("The page tells how many", True),
        ("So many of the first", True),
        ("Whose", True),
        ("a policy whose reward rises", False),
        ("What is imitated", True),
        ("What is a rollout?", False),
        ("Nobody judged it", True),
        ("It stands beside the chart", True),
        ("a stand-in for the Hub", False),
        ("what the endpoint bears", True),
        ("the bearer token", False),
        ("95 % of them", True),
        ("Training goes on", True),
        ("a server of its own", True),
        ("twice the tokens of its own answer", False),
        ("Of a training run; left out: the newest", True),
        ("Maximum number of rows", False),
    ],
)
def test_a_phrase_to_avoid_is_found(words: str, is_found: bool) -> None:
    assert bool(list(unwanted_phrases([Text(Path("x"), 1, words)]))) is is_found


def test_spelling_is_american() -> None:
    texts = [
        Text(Path("x"), 1, "a recieved message"),
        Text(Path("x"), 2, "the colour"),
        Text(Path("x"), 3, "the color"),
    ]
    assert [(finding.line, finding.advice) for finding in misspellings(texts)] == [(1, "received"), (2, "color")]


def test_every_exception_is_still_needed() -> None:
    lines = [line for line in check_prose.ALLOWED.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 20
    for line in lines:
        path, part, reason = (word.strip() for word in line.split("|"))
        assert part in (check_prose.ROOT / path).read_text(), line
        assert reason
