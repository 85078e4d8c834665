"""The built site: generated references, no inline code, and its route."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from backend.app import create_app
from backend.domain.detectors.registry import SPECS
from backend.domain.vocabulary import Role
from backend.settings import ALL_FIELDS
from backend.web import docs_site
from backend.web.routing import guarded_routes
from tests.web_fixtures import ClientFor


@pytest.mark.slow
def test_the_references_list_every_setting_operation_and_command(site: Path) -> None:
    settings = (site / "settings.html").read_text()
    assert all(f"PROCTOR_{name.upper()}" in settings or name.upper() in settings for name in ALL_FIELDS)

    operations = (site / "api-operations.html").read_text()
    paths = {path.removeprefix("/api/v1") for path, _, _ in guarded_routes(create_app()) if path.startswith("/api/v1/")}
    assert len(paths) > 100
    assert [
        path for path in paths - {"/openapi.json"} if f" {path}<" not in re.sub("</?span[^>]*>", "", operations)
    ] == []

    detectors = (site / "detector-list.html").read_text()
    assert all(name in detectors for name in SPECS)

    commands = (site / "cli.html").read_text()
    listed = subprocess.run([sys.executable, "-m", "backend.cli", "--help"], capture_output=True, text=True, check=True)
    names = re.findall(r"^  ([a-z]+) {2,}", listed.stdout.partition("Commands:")[2], re.MULTILINE)
    assert len(names) > 10
    assert [name for name in names if f"proctor {name}" not in re.sub("<[^>]+>", "", commands)] == []


@pytest.mark.slow
def test_pages_obey_the_content_security_policy(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=\"|<style|\son\w+=\"", text), page.name
        loaded = re.findall(
            r"<(?:script|img|source)[^>]*?\b(?:src|srcset)=\"([^\"]+)\"|<link[^>]*?\bhref=\"([^\"]+)\"", text
        )
        assert not [address for pair in loaded for address in pair if re.match(r"(https?:)?//", address)], page.name


@pytest.mark.slow
def test_members_read_the_site(site: Path, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_site, "DOCS_FOLDER", site)
    client = client_for(Role.VIEWER)
    front = client.get("/docs", follow_redirects=True)
    assert front.status_code == 200
    assert "<h1>Proctor documentation" in front.text
    assert "default-src 'self'" in front.headers["Content-Security-Policy"]
    for path in ("filters", "filters.html", "searchindex.js", "decisions/0001-hand-play-by-replay"):
        assert client.get(f"/docs/{path}").status_code == 200, path
    for path in ("nothing", "nothing.html", "%2e%2e/%2e%2e/pyproject.toml", "..%2fcss/base.css"):
        assert client.get(f"/docs/{path}").status_code == 404, path


@pytest.mark.slow
def test_a_site_that_is_not_built_shows_how(
    tmp_path: Path, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs_site, "DOCS_FOLDER", tmp_path / "missing")
    answer = client_for(Role.VIEWER).get("/docs/")
    assert answer.status_code == 404
    assert "make docs" in answer.text


def test_strangers_are_sent_to_the_sign_in(stranger: TestClient) -> None:
    answer = stranger.get("/docs/", headers={"Accept": "text/html"}, follow_redirects=False)
    assert answer.status_code in {303, 401}
