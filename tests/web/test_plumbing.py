"""Headers, health, errors and the way to sign-in, seen from a browser."""

from fastapi.testclient import TestClient

from backend.web.static import static_url


def test_the_health_check_answers_anybody(stranger: TestClient) -> None:
    assert stranger.get("/healthz").json()["status"] == "ok"


def test_every_answer_carries_a_strict_content_security_policy(stranger: TestClient) -> None:
    for path in ("/healthz", "/nowhere", static_url("css/base.css")):
        policy = stranger.get(path).headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy


def test_a_file_named_with_its_hash_is_kept_for_ever(stranger: TestClient) -> None:
    assert "immutable" in stranger.get(static_url("css/base.css")).headers["cache-control"]
    assert stranger.get("/static/css/base.css").headers["cache-control"] == "no-cache"


def test_an_unknown_page_is_a_page_that_says_so(viewer: TestClient) -> None:
    answer = viewer.get("/nowhere")
    assert answer.status_code == 404
    assert "Not found" in answer.text


def test_an_unknown_api_path_is_json(viewer: TestClient) -> None:
    answer = viewer.get("/api/v1/nowhere")
    assert answer.status_code == 404
    assert answer.json()["error"] == "NotFound"


def test_a_change_sent_by_another_site_is_refused(stranger: TestClient) -> None:
    answer = stranger.post("/sign-in", data={}, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    answer = stranger.post("/sign-in", data={}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
