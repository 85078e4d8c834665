"""Reports: everything about a run or a comparison in one file that opens offline."""

import re

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.web.standalone import without_interaction
from tests.factories import make_environment_version, make_flag, make_group, make_rollout, make_run
from tests.shares.documents import make_pair, make_training, refuse_anything_active


def titles(html: str) -> list[str]:
    return re.findall(r'<h2 class="report-title">([^<]+)</h2>', html)


def test_a_comparison_shows_the_difference_both_conversations_and_the_safeguards(
    session: Session, viewer: TestClient
) -> None:
    before, after = make_pair(session)
    make_flag(session, after, make_rollout(session, after, make_group(session, after, index=9), (1.0, 1.0, 0.0)))
    ids = str(before.id), str(after.id)
    answer = viewer.get("/compare/report.html", params={"run": ids})
    assert answer.status_code == 200
    assert "attachment" in answer.headers["content-disposition"]
    html = answer.text
    refuse_anything_active(html)
    assert titles(html) == [
        *("Runs", "Difference", "Conversations", "Safeguards of base model", "Safeguards of trained model")
    ]
    escaped = "&lt;script&gt;alert(1)&lt;/script&gt;"
    for text in ("95% bootstrap interval", "Reward columns", escaped, "Exported by Viewer"):
        assert text in html, text
    same = viewer.get(f"/api/v1/runs/{ids[1]}/report", params={"against": ids[0]})
    assert titles(same.text) == titles(html)


def test_a_run_shows_its_figures_conversations_and_configuration(session: Session, viewer: TestClient) -> None:
    run, _ = make_pair(session)
    html = viewer.get(f"/runs/{run.id}/report.html").text
    refuse_anything_active(html)
    assert titles(html) == ["Run", "Outcome", "Figures", "Conversations", "Safeguards", "Configuration"]
    assert "<svg" in html
    assert "Lowest reward" in html


def test_a_training_run_is_compared_with_its_beginning(session: Session, viewer: TestClient) -> None:
    run = make_training(session)
    html = viewer.get(f"/runs/{run.id}/report.html").text
    refuse_anything_active(html)
    assert "Improvement from step 0 to step 5" in titles(html)
    assert "at step 0" in html


def test_a_very_long_conversation_is_shortened(session: Session, viewer: TestClient) -> None:
    version = make_environment_version(session)
    run = make_run(session, version, name="long")
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": f"turn {turn} " + "<&x" * 3400} for turn in range(1000)]
    make_rollout(session, run, make_group(session, run), (1.0, 1.0, 0.0), messages=messages)
    html = viewer.get(f"/runs/{run.id}/report.html").text
    assert len(html) < 1_500_000
    assert "960 messages are not shown here." in html
    assert "turn 999" in html
    assert "turn 500" not in html


@pytest.mark.parametrize("query", ["", "?run=", "?run=x", "?run=x&run=y", "?run=" + "x" * 500])
def test_a_report_of_nothing_is_refused(viewer: TestClient, query: str) -> None:
    assert viewer.get(f"/compare/report.html{query}").status_code in {404, 422}


def test_nothing_active_is_left_of_a_page() -> None:
    html = without_interaction(
        "<div class='a' onclick='x()'><a href='/runs'>run</a><script>bad()</script><form><p>gone</p></form>"
        "<svg class='icon'><use href='/x.svg#y'/></svg><svg viewBox='0 0 1 1'><rect width='1'/></svg>"
        "<img src='https://x.example/y.png'><img src='data:image/png;base64,AA' alt='b'>"
        "<details class='drop'>menu</details><table><tr><th> </th><td style='x' data-href='/'>y</table>"
        "<time datetime='2026-01-01' title='1 Jan 2026'>3 h ago</time><p hidden>gone</p>"
        "a &lt;b&gt; &amp;amp;</div><p>open"
    )
    assert html == (
        '<div class="a">run<svg viewBox="0 0 1 1"><rect width="1"></rect></svg>'
        '<img src="data:image/png;base64,AA" alt="b"><table><tbody><tr><td></td><td>y</td></tr></tbody>'
        '</table><time datetime="2026-01-01" title="1 Jan 2026">1 Jan 2026</time>'
        "a &lt;b&gt; &amp;amp;</div><p>open</p>"
    )
