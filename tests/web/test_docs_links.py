"""Links from pages and errors to the documentation about them."""

from fastapi.testclient import TestClient


def test_a_page_and_its_errors_lead_to_the_section_about_them(viewer: TestClient, stranger: TestClient) -> None:
    assert 'href="/docs/review.html"' in viewer.get("/review").text
    missing = viewer.get("/graders/no-such-grader")
    assert missing.status_code == 404
    assert '<a href="/docs/graders.html">Documentation about this</a>' in missing.text
    assert "Documentation about this" not in stranger.get("/sign-in").text
