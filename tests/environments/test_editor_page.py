"""The editor: saving, conflicts of two tabs, problems while typing, publishing, file names."""

import html
import re
import time

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.environments.drafts import text_mark
from backend.environments.library import render_template
from backend.environments.queries import find_version, get_draft
from backend.environments.service import create_environment
from backend.environments.tables import Environment
from tests.environments.packages import make_files
from tests.factories import make_rollouts, make_run

PAGE = "/environments/guess/edit"
README = make_files()["README.md"]
HTMX = {"HX-Request": "true"}


def form(text: str, path: str = "README.md", **fields: object) -> dict[str, object]:
    return {"path": path, "text": text, "mark": text_mark(make_files()[path]), "revision": 1, **fields}


def readme(session: Session, guess: Environment) -> str:
    draft = get_draft(session, guess)
    session.refresh(draft)
    return draft.files["README.md"]


def test_it_shows_files_text_and_columns(author: TestClient, guess: Environment):
    text = author.get(f"{PAGE}?file=models.py").text
    assert "class GuessAction(Action):" in text
    assert "edit?file=server/app.py" in text
    assert "× 1.00" in text
    assert "can be published" in text


def test_a_file_that_is_not_there_opens_the_manifest(author: TestClient, guess: Environment):
    assert "spec_version: 1" in author.get(f"{PAGE}?file=../../etc/passwd").text


def test_a_save_answers_with_the_page_it_came_from(session: Session, author: TestClient, guess: Environment):
    answer = author.post(PAGE, data=form("# New\r\nline\r\n"))
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}?file=README.md")
    assert readme(session, guess) == "# New\nline\n"


def test_a_save_while_typing_answers_with_the_new_state(session: Session, author: TestClient, guess: Environment):
    answer = author.post(PAGE, data=form("# New\n", then="autosave"), headers=HTMX)
    assert answer.status_code == 200
    assert f'name="mark" value="{text_mark("# New" + chr(10))}"' in answer.text
    assert 'name="revision" value="2"' in answer.text
    assert "<textarea" not in answer.text


def test_an_empty_file_may_be_saved(session: Session, author: TestClient, guess: Environment):
    assert author.post(PAGE, data=form("")).status_code == 303
    assert readme(session, guess) == ""


def test_the_second_tab_sees_both_texts_and_may_save_over(session: Session, author: TestClient, guess: Environment):
    author.post(PAGE, data=form("first\n"))
    answer = author.post(PAGE, data=form("second\n"))
    assert answer.status_code == 409
    assert "README.md was saved after you opened it" in answer.text
    assert "\nsecond\n</textarea>" in answer.text
    assert '<tr data-change="remove">' in answer.text
    assert readme(session, guess) == "first\n"
    assert author.post(PAGE, data=form("second\n", then="overwrite")).status_code == 303
    assert readme(session, guess) == "second\n"


def test_a_text_that_is_too_big_is_reported_and_kept_on_the_page(
    session: Session, author: TestClient, guess: Environment
):
    answer = author.post(PAGE, data=form("x" * 1_000_001))
    assert answer.status_code == 422
    assert "at most 1,000,000" in answer.text
    assert "xxxx</textarea>" in answer.text
    assert readme(session, guess) == README


def test_publishing_saves_first(session: Session, author: TestClient, guess: Environment):
    answer = author.post(PAGE, data=form("# New\n", then="publish", notes="Better words"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/environments/guess/versions/1")
    version = find_version(session, guess, with_files=True)
    assert (version.files["README.md"], version.notes) == ("# New\n", "Better words")
    assert "Better words" in author.get("/environments/guess/versions/1").text


def test_publishing_has_the_history_graded_again_when_wanted(session: Session, author: TestClient, guess: Environment):
    assert 'name="regrade"' not in author.get(PAGE).text, "there is no history yet"
    author.post(PAGE, data=form("# One\n", then="publish"))
    jobs = select(Job).where(Job.name == "rescoring.history")
    assert session.scalars(jobs).all() == []
    first = find_version(session, guess)
    assert first
    rollout = make_rollouts(session, (run := make_run(session, first)), [[1.0] * len(run.columns)])[0]
    ticked = re.compile(r'name="regrade" value="true"( checked)?>')
    shown = author.get(PAGE)
    assert ticked.search(shown.text)[1] is None
    assert ticked.search(author.get(f"{PAGE}?beside={rollout.id}").text)[1], "a reward is repaired"
    sent = {"mark": text_mark("# One\n"), "then": "publish", "regrade": "true"}
    refused = author.post(PAGE, data=form("# Two\n", **sent))
    assert refused.status_code == 409, "it was seen at revision 1"
    assert ticked.search(refused.text)[1], "what was chosen stays"
    seen = {"revision": 3, "mark": text_mark("# Two\n")}
    answer = author.post(PAGE, data=form("# Two\n", **sent) | seen)
    assert answer.headers["location"] == "/environments/guess/versions/2"
    version = find_version(session, guess)
    me = author.get("/api/v1/me").json()["person_id"]
    assert [job.arguments for job in session.scalars(jobs)] == [{"version_id": str(version.id), "person_id": me}]


def test_publishing_with_problems_keeps_what_was_typed(session: Session, author: TestClient, guess: Environment):
    answer = author.post(PAGE, data=form("def broken(\n", path="server/app.py", then="publish", notes="my notes"))
    assert answer.status_code == 422
    assert "Nothing was published. server/app.py line 1" in answer.text
    assert "my notes" in answer.text
    session.refresh(get_draft(session, guess))
    assert get_draft(session, guess).files["server/app.py"] == "def broken(\n"
    assert find_version(session, guess) is None


def test_publishing_what_one_did_not_see_is_refused(session: Session, author: TestClient, guess: Environment):
    author.post(PAGE, data=form("app = 2\n", path="server/app.py"))
    answer = author.post(PAGE, data=form(README, then="publish"))
    assert answer.status_code == 409
    assert "it is at revision 2, you saw 1" in answer.text
    assert find_version(session, guess) is None


def test_saving_does_not_pass_the_changes_of_others_as_seen(author: TestClient, guess: Environment):
    author.post(PAGE, data=form("app = 2\n", path="server/app.py"))
    answer = author.post(PAGE, data=form("# New\n", then="autosave"), headers=HTMX)
    assert 'name="revision" value="1"' in answer.text
    assert 'id="draft-message"' not in answer.text


def test_publishing_the_same_again_says_so(author: TestClient, guess: Environment):
    author.post(PAGE, data=form(README, then="publish"))
    answer = author.post(PAGE, data=form(README, then="publish"))
    assert answer.status_code == 409
    assert "has exactly this content" in answer.text


def test_problems_are_reported_while_typing_and_nothing_is_stored(
    session: Session, author: TestClient, guess: Environment
):
    manifest = make_files()["openenv.yaml"].replace("win: 1.0", "win: much")
    answer = author.post(f"{PAGE}/validate", data=form(manifest, path="openenv.yaml"))
    [problem] = answer.json()["problems"]
    assert (problem["path"], problem["line"]) == ("openenv.yaml", 11)
    assert problem["message"].startswith("proctor.rewards.win.weight: ")
    assert get_draft(session, guess).revision == 1


def test_files_are_added_renamed_and_deleted(session: Session, author: TestClient, guess: Environment):
    assert author.post("/environments/guess/files", data={"path": " server/rules.py "}).status_code == 303
    renamed = {"path": "server/rules.py", "new_path": "server/laws.py"}
    assert author.post("/environments/guess/files/rename", data=renamed).status_code == 303
    deleted = {"path": "server/laws.py", "mark": text_mark("")}
    assert author.post("/environments/guess/files/delete", data=deleted).status_code == 303
    session.refresh(get_draft(session, guess))
    assert get_draft(session, guess).files == make_files()
    assert author.post("/environments/guess/files", data={"path": "../up"}).status_code == 422
    assert author.post("/environments/guess/files", data={"path": ""}).status_code == 422


def test_only_authors_change_a_draft(viewer: TestClient, guess: Environment):
    for path in (
        "edit",
        "edit/validate",
        "files",
        "files/rename",
        "files/delete",
        "archive",
        "restore",
        "versions/1/checks",
    ):
        assert viewer.post(f"/environments/guess/{path}", data=form("x")).status_code == 403


def test_an_environment_that_is_not_there_is_404(author: TestClient):
    assert author.get("/environments/nothing/edit").status_code == 404
    assert author.post("/environments/nothing/edit", data=form("x")).status_code == 404
    assert author.post("/environments/nothing/files", data={"path": "x.py"}).status_code == 404


def test_a_form_from_elsewhere_is_refused(author: TestClient, guess: Environment):
    answer = author.post(PAGE, data=form("x"), headers={"X-CSRF-Token": "wrong"})
    assert answer.status_code == 403


def test_a_box_that_was_not_ticked_stays_so_after_a_refusal(author: TestClient, guess: Environment):
    box = 'name="check" value="true" checked'
    assert box in author.get(PAGE).text
    broken = form("def broken(\n", path="server/app.py", then="publish")
    assert box not in author.post(PAGE, data=broken).text
    assert box in author.post(PAGE, data=broken | {"check": "true"}).text


def test_the_next_step_is_named(author: TestClient, viewer: TestClient, guess: Environment):
    assert "try the draft</a>, then publish it" in author.get("/environments/guess").text
    author.post(PAGE, data=form(README, then="publish"))
    assert "run the checks</a>: they measure how far the reward of v1" in author.get("/environments/guess").text
    assert "next-step" not in viewer.get("/environments/guess").text
    author.post(PAGE, data=form("# New\n", then="save"))
    assert "publish them</a> as v2" in author.get("/environments/guess").text


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("version: 2001-99-99\nport: 2001-99-99", "valid integer"),
        (f"port: {'9' * 5000}", "64 bits"),
        ("port: .inf", "must be finite"),
        ("variables: {a: !!timestamp 2001-99-99}", "timestamp"),
        ("variables: " + "[" * 900, "nested deeper"),
        ("variables: {a: &a [*a]}", "aliases"),
    ],
)
def test_a_manifest_with_an_odd_value_is_saved_and_its_problem_is_shown(
    author: TestClient, guess: Environment, wrong: str, told: str
):
    written = f"{make_files()['openenv.yaml']}\n{wrong}\n"
    answer = author.post(PAGE, data=form(written, "openenv.yaml"))
    assert answer.status_code == 303
    page = author.get(f"{PAGE}?file=openenv.yaml")
    assert page.status_code == 200
    assert told in page.text


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ 9**9999999 }}", "operator ** is not available"),
        ("{{ 1 if (''|e).__class__.join }}", "`__class__` is not available"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested deeper than 20 levels"),
        ("{{ " + "+".join(["1"] * 9000) + " }}", "signs or conditions"),
    ],
)
def test_a_hostile_template_is_a_problem_on_the_page_and_nothing_waits_for_it(
    author: TestClient, guess: Environment, template: str, told: str
):
    before = make_files()["openenv.yaml"]
    written = re.sub(r"observation: .*", lambda _: f'observation: "{template}"', before, count=1)
    assert written != before
    began = time.process_time()
    assert author.post(PAGE, data=form(written, "openenv.yaml")).status_code == 303
    page = author.get(f"{PAGE}?file=openenv.yaml")
    assert page.status_code == 200
    assert told in page.text
    assert time.process_time() - began < 5.0


def test_fixtures_follow_a_renamed_column_and_the_change_can_be_undone(session: Session, author: TestClient):
    environment = create_environment(session, None, "sums", render_template("single_turn", "sums"))
    draft = get_draft(session, environment)
    before = dict(draft.files)
    manifest = before["openenv.yaml"].replace("    correct: {weight", "    right: {weight")
    sent = {"path": "openenv.yaml", "text": manifest, "mark": text_mark(before["openenv.yaml"]), "revision": 1}
    offer = author.post("/environments/sums/edit", data={**sent, "then": "autosave"}, headers=HTMX).text
    assert "3 fixtures state the column <code>correct</code>" in offer
    assert "Rename it to right" in offer
    assert "can be published" not in offer

    place = {"path": "openenv.yaml", "mark": text_mark(manifest), "revision": 2}
    changed = author.post(
        "/environments/sums/fixtures/column", data={**place, "column": "correct", "heir": "right"}, headers=HTMX
    ).text
    assert "correct is now right in 3 fixtures." in changed
    assert "3 fixtures state" not in changed
    session.refresh(draft)
    assert '"right": 1.0' in draft.files["fixtures/right_answer.json"]

    kept = html.unescape(re.findall(r'name="fixtures" value="([^"]*)"', changed)[0])
    place["revision"] = 3
    undo = "/environments/sums/fixtures/restore"
    refused = author.post(undo, data={**place, "fixtures": '{"openenv.yaml": "x"}'}, headers=HTMX)
    assert refused.status_code == 422
    assert "3 fixtures state" in author.post(undo, data={**place, "fixtures": kept}, headers=HTMX).text
    session.refresh(draft)
    assert draft.files == before | {"openenv.yaml": manifest}
