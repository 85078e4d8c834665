"""When a push would overwrite what its folder never saw."""

from pathlib import Path

from backend.cli.working_copy import STATE, SeenDraft, conflict_of, last_seen, marks_of, remember

MINE = {"openenv.yaml": "a", "server/app.py": "mine"}
THEIRS = {"openenv.yaml": "b", "server/app.py": "old"}
BASE = {"openenv.yaml": "a", "server/app.py": "old"}


def told(
    seen: SeenDraft | None, mine: dict[str, str], theirs: dict[str, str], revision: int = 7, published: bool = False
):
    return conflict_of(seen, mine, theirs, revision=revision, is_published=published)


def test_a_folder_that_saw_the_draft_as_it_is_may_push():
    assert told(SeenDraft("x", 7, marks_of(THEIRS)), MINE, THEIRS) == ""


def test_a_draft_that_continued_is_reported_file_by_file():
    said = told(SeenDraft("x", 5, marks_of(BASE)), MINE, THEIRS)
    assert "at revision 7, this folder saw 5" in said
    assert "changed there: openenv.yaml\n" in said
    assert "changed here:  server/app.py\n" in said
    assert "in both:       nothing" in said


def test_the_same_file_changed_on_both_sides_is_named():
    said = told(
        SeenDraft("x", 5, marks_of({"openenv.yaml": "base"})), {"openenv.yaml": "mine"}, {"openenv.yaml": "theirs"}
    )
    assert "in both:       openenv.yaml" in said


def test_a_revision_without_a_difference_is_no_conflict():
    assert told(SeenDraft("x", 5, marks_of(BASE)), MINE, BASE) == ""
    assert told(None, MINE, MINE) == ""


def test_a_folder_that_never_met_the_draft_may_replace_only_what_is_published():
    assert told(None, MINE, THEIRS, published=True) == ""
    assert "differs: openenv.yaml, server/app.py" in told(None, MINE, THEIRS)


def test_what_was_seen_is_remembered_and_a_broken_note_is_no_note(tmp_path: Path):
    assert last_seen(tmp_path) is None
    remember(tmp_path, "guess", 3, BASE)
    assert last_seen(tmp_path) == SeenDraft("guess", 3, marks_of(BASE))
    (tmp_path / STATE).write_text('{"surprise": 1}')
    assert last_seen(tmp_path) is None
