"""The difference between versions."""

from backend.domain.environments.diff import DiffLine, diff_files


def test_it_shows_what_was_added_removed_and_changed():
    before = {"same.py": "x\n", "gone.py": "a\n", "other.py": "1\n2\n3\n"}
    after = {"same.py": "x\n", "new.py": "b\n", "other.py": "1\nzwei\n3\n"}
    found = {file.path: file for file in diff_files(before, after)}
    assert {path: file.change for path, file in found.items()} == {
        "gone.py": "removed",
        "new.py": "added",
        "other.py": "changed",
    }
    assert found["other.py"].lines == [
        DiffLine("same", "1", 1, 1),
        DiffLine("removed", "2", 2, None),
        DiffLine("added", "zwei", None, 2),
        DiffLine("same", "3", 3, 3),
    ]
    assert (found["other.py"].count("added"), found["other.py"].count("removed")) == (1, 1)


def test_it_leaves_out_what_is_far_from_a_change():
    before = "".join(f"{n}\n" for n in range(100))
    [file] = diff_files({"a": before}, {"a": before.replace("50\n", "fifty\n")})
    assert [line.kind for line in file.lines] == ["gap", *["same"] * 3, "removed", "added", *["same"] * 3, "gap"]
    assert file.lines[4].before == 51


def test_huge_files_differ_line_by_line():
    before = "".join(f"{n}\n" for n in range(60_000))
    after = "start\n" + "".join(f"{n + n % 7}\n" for n in range(60_000))
    [file] = diff_files({"a": before}, {"a": after})
    assert (file.count("added"), file.count("removed")) == (60_001, 60_000)
