"""Views of observations: what each kind makes of a field, and what hostile packages get instead of a picture."""

import base64
import json
import time
from typing import Any

import pytest

from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.view_specs import Tone, ViewSpec
from backend.domain.environments.views import (
    MAX_HISTORY,
    GridCell,
    Picture,
    RenderedView,
    TextRun,
    ViewBudget,
    ViewRenderer,
    ViewTable,
)
from backend.web.templating import templates

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (4).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(20)
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">{}</svg>'


def view(observation: dict[str, Any], **spec: Any) -> RenderedView:
    (shown,) = ViewRenderer([ViewSpec(**spec)]).render(observation)
    return shown


def svg_of(text: str) -> tuple[str, list[str]]:
    """The picture that pages show, and what was removed from it."""
    picture = view({"svg": text}, kind="svg", field="svg").content
    assert isinstance(picture, Picture)
    return base64.b64decode(picture.address.partition(",")[2]).decode(), list(picture.removed)


def html_of(shown: RenderedView) -> str:
    return str(templates().from_string("{{ ui.views(shown) }}").render(shown=[shown]))


def test_a_board_is_lines_of_text_or_rows_of_cells():
    board = view({"board": "1 X\nO 4"}, kind="grid", field="board", tones={"X": "blue"}, labels={"4": ""})
    assert board.content == [[GridCell("1"), GridCell("X", Tone.BLUE)], [GridCell("O"), GridCell("")]]
    assert view(
        {"board": ["ab", [{"text": "c", "tone": "green"}, {"text": 1, "tone": []}]]}, kind="grid", field="board"
    )
    written = view({"x": 1}, kind="grid", template='[["{{ observation | length }}"]]')
    assert written.content == [[GridCell("1")]]


def test_tables_read_rows_and_mappings():
    rows = [{"code": "NL1", "seats": 4, "via": ["a", "b"]}, {"code": "NL2"}]
    table = view({"rows": rows}, kind="table", field="rows", columns={"code": "Flight", "via": "Via"})
    assert table.content == ViewTable(["Flight", "Via"], [["NL1", "a, b"], ["NL2", ""]])
    assert view({"form": {"done": True}}, kind="table", field="form").content == ViewTable([], [["done", "yes"]])
    many = view({"rows": [[1]] * 300}, kind="table", field="rows").content
    assert isinstance(many, ViewTable)
    assert (len(many.rows), many.omitted) == (200, 100)


def test_terminals_diffs_and_images():
    lines = view({"log": "\x1b[1;31mred\x1b[0m rest"}, kind="terminal", field="log").content
    assert lines == [[TextRun("red", "bold fg-1"), TextRun(" rest")]]
    diff = view({"a": "x\ny", "b": "x\nz"}, kind="diff", before="a", after="{{ b }}").content
    assert [line.kind for line in diff] == ["same", "removed", "added"]
    picture = view({"png": base64.b64encode(PNG).decode()}, kind="image", field="png").content
    assert isinstance(picture, Picture)
    assert (picture.width, picture.height, picture.address[:22]) == (4, 3, "data:image/png;base64,")


def test_templates_read_the_action_the_opening_and_the_history():
    spec = ViewSpec(kind="markdown", template="{{ opening.q }} {{ action.a }} {{ history | length }} {{ m }}")
    steps = [{"action": {"a": n}, "observation": {"m": n}} for n in range(80)]
    (shown,) = ViewRenderer([spec]).render({"m": "last"}, {"a": 9}, {"q": "?"}, steps)
    assert shown.content == f"? 9 {MAX_HISTORY} last"


def test_empty_content_is_no_view():
    specs = [
        ViewSpec(kind="grid", field="board"),
        ViewSpec(kind="markdown", template="{% if x is defined %}a{% endif %}"),
    ]
    assert ViewRenderer(specs).render({"board": None, "y": 1}) == []
    assert ViewRenderer(specs).render({}) == []


HOSTILE_SVG = [
    ("<script>alert(1)</script>", "script"),
    ('<rect onload="alert(1)" width="1"/>', "onload"),
    ("<foreignObject><body xmlns='http://www.w3.org/1999/xhtml'>x</body></foreignObject>", "foreignObject"),
    ('<image href="https://example.org/x.png"/>', "image"),
    ('<a href="javascript:alert(1)"><text>x</text></a>', "a"),
    ('<use href="#a"/>', "use"),
    ('<rect fill="url(https://example.org/x)"/>', "fill"),
    ('<rect style="fill: URL(//example.org/x)"/>', "fill"),
    ('<rect style="background: red"/>', "style background"),
    ("<style>@import url(//example.org)</style>", "style"),
    ('<set attributeName="href" to="javascript:alert(1)"/>', "set"),
    ('<rect xmlns:x="http://www.w3.org/1999/xlink" x:href="https://example.org"/>', "href"),
    ('<h:script xmlns:h="http://www.w3.org/1999/xhtml">x</h:script>', "script"),
]


@pytest.mark.parametrize(("content", "removed"), HOSTILE_SVG)
def test_svg_is_written_anew_without_what_runs_or_loads(content: str, removed: str):
    picture, names = svg_of(SVG.format(f'{content}<circle r="1"/>'))
    assert names == [removed]
    assert picture.endswith('<circle r="1"></circle></svg>')
    assert not any(word in picture.lower() for word in ("script", "example.org", "alert", "href", "import"))


def test_a_harmless_svg_keeps_its_looks():
    content = '<linearGradient id="g"><stop offset="0" stop-color="red"/></linearGradient><rect style="fill: url(#g)"/>'
    picture, names = svg_of(SVG.format(f"{content}<text>a &lt;b&gt; &amp; c</text>"))
    assert names == []
    assert 'fill="url(#g)"' in picture
    assert "a &lt;b&gt; &amp; c" in picture


LOOP = "{% for a in range(999) %}{% for b in range(999) %}x{% endfor %}{% endfor %}"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"kind": "markdown", "template": LOOP}, "", "20,000 steps"),
    ({"kind": "markdown", "template": "{{ x.__class__.__mro__ }}"}, "a", "not available"),
    ({"kind": "markdown", "template": "{{ missing.field }}"}, "a", "missing"),
    ({"kind": "markdown", "template": "{% for a in range(9999) %}{{ x }}{% endfor %}"}, "a" * 50_000, "characters"),
    ({"kind": "markdown", "field": "x"}, "a" * 100_001, "at most 100,000"),
    ({"kind": "svg", "field": "x"}, '<!DOCTYPE s [<!ENTITY a "b">]><svg>&a;</svg>', "document type"),
    ({"kind": "svg", "field": "x"}, "<g>" * 40, "not `svg`"),
    ({"kind": "svg", "field": "x"}, "<svg>" + "<g>" * 40, "nested deeper"),
    ({"kind": "svg", "field": "x"}, f"<svg>{'<g/>' * 6000}</svg>", "elements"),
    ({"kind": "svg", "field": "x"}, "<svg", "not XML"),
    ({"kind": "svg", "field": "x"}, "<svg>" + "a" * 200_000, "at most 200,000"),
    ({"kind": "image", "field": "x"}, "aGVsbG8=", "not PNG"),
    ({"kind": "image", "field": "x"}, "%%%", "not base64"),
    (
        {"kind": "image", "field": "x"},
        base64.b64encode(PNG[:16] + (60_000).to_bytes(4, "big") * 2 + bytes(9)).decode(),
        "pixels",
    ),
    ({"kind": "terminal", "field": "x"}, "\n" * 3000 + "a", "lines"),
    ({"kind": "grid", "field": "x"}, "\n".join("ab" for _ in range(99)), "at most 40"),
    ({"kind": "grid", "template": "[[1]"}, "a", "not JSON"),
    ({"kind": "table", "template": "[" * 19_000}, "a", "not JSON"),
    ({"kind": "diff", "before": "x", "after": "y"}, "a\n" * 500, "400 lines"),
]


@pytest.mark.parametrize(("spec", "text", "reason"), REFUSED)
def test_a_view_that_loops_or_is_too_large_is_refused_quickly(spec: dict[str, Any], text: str, reason: str):
    began = time.process_time()
    shown = view({"x": text, "y": "b"}, **spec)
    assert reason in shown.problem
    assert time.process_time() - began < 1
    assert "This view cannot be shown" in html_of(shown)


def test_the_views_of_a_page_share_a_budget():
    renderer = ViewRenderer([ViewSpec(kind="text", field="x")], ViewBudget(bytes=150_000))
    assert [bool(renderer.render({"x": "a" * 90_000})[0].problem) for _ in range(2)] == [False, True]
    spec = ViewSpec(kind="markdown", template="{% for a in range(4000) %}x{% endfor %}")
    renderer = ViewRenderer([spec], ViewBudget(steps=10_000))
    assert [bool(renderer.render({"x": 1})[0].problem) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize("kind", ["markdown", "text", "terminal", "diff", "table", "grid"])
def test_no_markup_of_a_package_reaches_the_page(kind: str):
    hostile = (
        "<script>alert(1)</script><img src=x onerror=alert(1)> [a](javascript:alert(1)) ![b](https://example.org/b)"
    )
    html = html_of(view({"x": [[hostile]] if kind in {"table", "grid"} else hostile}, kind=kind, field="x"))
    assert "<script" not in html
    assert "<img" not in html
    assert 'href="javascript' not in html


def test_an_older_version_is_shown_as_far_as_the_view_fits():
    spec = ViewSpec(kind="markdown", template="{{ new_field }}")
    assert ViewRenderer([spec], is_lenient=True).render({"old": 1}) == []


MANIFEST = """\
name: game
proctor:
  agent: {action: {field: move}}
  rewards: {win: 1}
  view:
%s
"""


@pytest.mark.parametrize(
    ("block", "line", "message"),
    [
        ("    {kind: grid}", 5, "either `field` or `template`"),
        ("    {kind: grid, field: a, template: b}", 5, "either `field` or `template`"),
        ("    - {kind: markdown, field: a}\n    - {kind: html, field: a}", 7, "Input should be"),
        ("    - {kind: markdown, field: a, tones: {X: blue}}", 6, "`tones` does not belong"),
        ("    {kind: grid, field: a, tones: {X: pink}}", 6, "Input should be"),
        ("    - {kind: diff, before: a}", 6, "both `before` and `after`"),
        ("    - kind: markdown\n      template: |\n        a\n        {{ b", 9, "does not compile"),
        ("    {kind: grid, field: __import__('os')}", 6, "should match"),
    ],
)
def test_a_wrong_view_is_reported_with_its_line(block: str, line: int, message: str):
    with pytest.raises(ManifestInvalid) as caught:
        read_manifest(MANIFEST % block)
    assert [(problem.line, message in problem.message) for problem in caught.value.problems] == [(line, True)]


def test_a_manifest_holds_one_view_or_several():
    one = read_manifest(MANIFEST % "    {kind: table, field: rows, columns: [a, b]}").proctor.views
    assert (len(one), one[0].columns) == (1, [("a", "a"), ("b", "b")])
    stored = read_manifest(MANIFEST % "    - {kind: grid, field: board}").model_dump(mode="json")
    assert json.loads(json.dumps(stored))["proctor"]["view"][0]["kind"] == "grid"
