"""The table of rollouts as a page: filter, shortcuts, columns, pages both ways, what is wrong in place, saved views."""

import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.rollouts.tables import SavedView
from backend.runs.tables import Run
from tests.factories import make_flag, make_rollouts, make_run, random_rows
from tests.web_fixtures import ClientFor


@pytest.fixture
def run(session: Session) -> Run:
    run = make_run(session)
    made = make_rollouts(session, run, random_rows(120, failing=0.1), group_size=2, metrics={"guesses": 3})
    for rollout in made[:6]:
        make_flag(session, run, rollout)
    return run


def read(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


def rows(html: str) -> list[str]:
    return re.findall(r'<tr data-href="/rollouts/([0-9a-f-]+)', html)


def links(html: str, rel: str) -> str:
    found = re.search(rf'href="([^"]+)" rel="{rel}"', html)
    assert found, rel
    return unescape(found[1])


def test_it_counts_what_matches_and_keeps_the_expression_in_the_box(viewer: TestClient, run: Run) -> None:
    html = viewer.get(f"/runs/{run.id}/rollouts", params={"where": "has flag"}).text
    assert "6 of 120 match" in read(html)
    assert 'name="where" value="has flag"' in html
    assert len(rows(html)) == 6


def test_what_is_wrong_is_marked_in_place_and_the_page_stands(viewer: TestClient, run: Run) -> None:
    answer = viewer.get(f"/runs/{run.id}/rollouts", params={"where": "has flag and wn = 0"})
    assert answer.status_code == 422
    assert "<mark>wn</mark>" in answer.text
    assert "Did you mean `win`?" in read(answer.text)
    assert 'aria-invalid="true"' in answer.text


def test_hostile_filters_are_escaped(viewer: TestClient, run: Run) -> None:
    html = viewer.get(f"/runs/{run.id}/rollouts", params={"where": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in html
    assert viewer.get(f"/runs/{run.id}/rollouts", params={"where": "x" * 3000}).status_code == 422
    assert viewer.get(f"/runs/{run.id}/rollouts", params={"where": 'text ~ "\x00"'}).status_code == 422
    assert viewer.get(f"/runs/{run.id}/rollouts", params={"sort": "password"}).status_code == 422


def test_old_links_with_parameters_are_in_the_box(viewer: TestClient, run: Run) -> None:
    html = viewer.get(f"/runs/{run.id}/rollouts?status=failed&min_reward=0.5&text=%22x").text
    assert 'value="status = failed and reward &gt;= 0.5 and text ~ &#34;\\&#34;x&#34;"' in html


def test_a_shortcut_writes_into_the_expression_and_takes_its_clause_back(viewer: TestClient, run: Run) -> None:
    address = f"/runs/{run.id}/rollouts"
    there = viewer.get(
        f"{address}/choose", params={"where": "win = 1 and status = failed", "set": "status:status = completed"}
    )
    assert there.status_code == 303
    where = parse_qs(urlsplit(there.headers["location"]).query)["where"]
    assert where == ["win = 1 and status = completed"]
    back = viewer.get(f"{address}/choose", params={"where": where[0], "set": "status:"})
    assert parse_qs(urlsplit(back.headers["location"]).query)["where"] == ["win = 1"]
    either = viewer.get(f"{address}/choose", params={"where": "win = 1 or win = 0", "set": "flag:has flag"})
    assert parse_qs(urlsplit(either.headers["location"]).query)["where"] == ["(win = 1 or win = 0) and has flag"]


def test_the_chosen_shortcut_shows_what_the_expression_states(viewer: TestClient, run: Run) -> None:
    html = viewer.get(f"/runs/{run.id}/rollouts", params={"where": "status  =  FAILED and win = 1"}).text
    assert '<option value="status:status = failed" selected>' in html


def test_columns_are_chosen_and_stay_chosen(viewer: TestClient, run: Run) -> None:
    address = f"/runs/{run.id}/rollouts"
    there = viewer.get(f"{address}/choose", params={"show": ["task", "seconds", "flag"]})
    html = viewer.get(there.headers["location"]).text
    heads = re.findall(r'<th scope="col"[^>]*>(?:<a [^>]*>)?([^<]+)', html)
    assert heads == ["task", "seconds", "flags"]
    assert "columns=task%2Cseconds%2Cflag" in links(html, "next")


@pytest.mark.slow
def test_every_column_can_be_shown_and_sorted_by(viewer: TestClient, run: Run) -> None:
    html = viewer.get(f"/runs/{run.id}/rollouts").text
    keys = re.findall(r'name="show" value="([^"]+)"', html)
    assert len(keys) > 20
    whole = viewer.get(f"/runs/{run.id}/rollouts", params={"columns": ",".join(keys)}).text
    sorts = set(re.findall(r"&(?:amp;)?sort=-?([^\"&]+)\"", whole))
    assert sorts >= set(keys) - {"excerpt", "id"}
    for sort in sorted(sorts):
        assert viewer.get(f"/runs/{run.id}/rollouts", params={"sort": sort}).status_code == 200, sort


def test_pages_lead_on_and_back_and_to_either_end(viewer: TestClient, run: Run) -> None:
    first = viewer.get(f"/runs/{run.id}/rollouts?sort=reward&where=turns+>+0").text
    second = viewer.get(links(first, "next")).text
    last = viewer.get(links(first, "last")).text
    assert rows(viewer.get(links(second, "prev")).text) == rows(first)
    assert rows(viewer.get(links(second, "first")).text) == rows(first)
    assert rows(viewer.get(links(second, "next")).text) == rows(last)[-20:]
    assert "Next" not in read(last[last.index("Pages") :])


def test_rows_carry_the_filter_to_the_rollouts_page(viewer: TestClient, run: Run) -> None:
    html = viewer.get(f"/runs/{run.id}/rollouts", params={"where": "has flag", "sort": "reward"}).text
    hrefs = [unescape(found) for found in re.findall(r'<tr data-href="([^"]+)"', html)]
    page = viewer.get(hrefs[2]).text
    assert unescape(re.search(r'href="([^"]+)" data-key="j"', page)[1]) == hrefs[3]  # type: ignore[index]
    assert unescape(re.search(r'href="([^"]+)" data-key="k"', page)[1]) == hrefs[1]  # type: ignore[index]
    assert "Previous and next pass the filter has flag" in read(page).replace("  ", " ")


def test_an_empty_list_shows_the_next_step(viewer: TestClient, session: Session, run: Run) -> None:
    assert "Remove a condition" in viewer.get(f"/runs/{run.id}/rollouts", params={"where": "win = 77"}).text
    assert "No rollouts yet" in viewer.get(f"/runs/{make_run(session).id}/rollouts").text


@pytest.mark.slow
def test_what_takes_too_long_is_ended_and_asks_for_less(viewer: TestClient, session: Session, run: Run) -> None:
    session.execute(text("SET LOCAL statement_timeout = 1"))
    where = " or ".join(f'text ~ "{number} nothing like it {"x" * 20}"' for number in range(25))
    answer = viewer.get(f"/runs/{run.id}/rollouts", params={"where": where})
    session.rollback()
    assert answer.status_code in {422, 504}
    assert "Use a narrower filter" in answer.text


def test_a_view_is_kept_shared_renamed_and_deleted(client_for: ClientFor, session: Session, run: Run) -> None:
    mine, other = client_for(Role.VIEWER), client_for(Role.AUTHOR)
    address = f"/runs/{run.id}/rollouts"
    sent = {"name": "odd wins", "filter": "has flag and win = 1", "sort": "-tokens"}
    kept = mine.post(f"{address}/views", data=sent)
    assert kept.status_code == 303
    assert parse_qs(urlsplit(kept.headers["location"]).query) == {"where": [sent["filter"]], "sort": ["-tokens"]}
    assert "odd wins" in mine.get(address).text
    assert "odd wins" not in other.get(address).text
    view = session.scalars(select(SavedView)).one()
    assert mine.post(f"{address}/views/{view.id}", data={"name": "odder", "is_shared": "true"}).status_code == 303
    assert "odder" in other.get(address).text
    assert other.post(f"{address}/views/{view.id}/delete").status_code == 403
    assert mine.post(f"{address}/views/{view.id}/delete").status_code == 303
    assert session.scalars(select(SavedView).where(SavedView.deleted_at.is_(None))).all() == []


def test_a_view_is_replaced_by_its_name_and_refuses_what_is_no_filter(
    viewer: TestClient, session: Session, run: Run
) -> None:
    address = f"/runs/{run.id}/rollouts/views"
    for expression in ("win = 1", "win = 0"):
        assert viewer.post(address, data={"name": "mine", "filter": expression}).status_code == 303
    assert session.scalars(select(SavedView.filter)).all() == ["win = 0"]
    assert viewer.post(address, data={"name": "wrong", "filter": "wn = 1"}).status_code == 422
    assert viewer.post(address, data={"name": "", "filter": "win = 1"}).status_code == 422


def test_the_api_filters_counts_and_picks_columns(viewer: TestClient, run: Run) -> None:
    asked = {"run_id": str(run.id), "where": "has flag", "columns": "task,flag,seconds", "sort": "seq"}
    found = viewer.get("/api/v1/rollouts", params=asked).json()
    assert len(found["items"]) == 6
    assert found["items"][0]["values"] == {
        "task": "heldout/0",
        "flag": ["repeated_text"],
        "seconds": pytest.approx(0.21),
    }
    assert found["items"][0]["flags"] == ["repeated_text"]
    counted = viewer.get("/api/v1/rollouts/count", params={"run_id": str(run.id), "where": "has flag"}).json()
    assert counted == {"matching": 6, "total": 120}
    wrong = viewer.get("/api/v1/rollouts", params={"run_id": str(run.id), "where": "wn = 1"})
    assert wrong.status_code == 422
    assert "at character 1" in wrong.json()["fields"]["where"]
    words = viewer.get(f"/api/v1/runs/{run.id}/filter-words").json()
    assert {"win", "flag", "text"} <= {field["name"] for field in words["fields"]}


def test_the_api_keeps_views(viewer: TestClient, client_for: ClientFor) -> None:
    made = viewer.post("/api/v1/views", json={"name": "a", "filter": "has flag"})
    assert made.status_code == 201
    address = f"/api/v1/views/{made.json()['id']}"
    assert viewer.patch(address, json={"is_shared": True}).json()["is_shared"] is True
    assert [view["owner"] for view in client_for(Role.AUTHOR).get("/api/v1/views").json()["items"]] == ["Viewer"]
    assert client_for(Role.ADMIN).delete(address).status_code == 204
    assert viewer.get("/api/v1/views").json()["items"] == []
