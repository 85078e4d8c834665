"""An author's Markdown is rendered, and nothing else happens."""

import pytest

from backend.web.templating import markdown


def test_it_draws_headings_tables_and_code():
    html = markdown("# A\n\n| a | b |\n|---|---|\n| 1 | `x` |\n")
    assert "<h1>A</h1>" in html
    assert "<td><code>x</code></td>" in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <img src=x onerror=alert(1)> b",
        "[x](javascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "![x](https://example.org/pixel.png)",
        '<https://example.org/"onmouseover="alert(1)>',
        "[x]: javascript:alert(1)\n\n[x]",
        '```"><script>\n</script>\n```',
    ],
)
def test_nothing_foreign_comes_through(text: str):
    html = markdown(text).lower()
    assert "<script" not in html
    assert "<img" not in html
    assert 'href="javascript' not in html
    assert 'href="data' not in html
    assert 'onmouseover="' not in html


@pytest.mark.slow
def test_a_text_that_nests_without_end_is_drawn():
    assert markdown("> " * 10_000 + "a")
    assert markdown("[" * 50_000)
