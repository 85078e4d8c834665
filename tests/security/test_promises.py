"""`SECURITY.md` names a test file for each promise, and every test file of this folder belongs to a promise."""

import re

from backend.settings import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "tests" / "security"


def test_every_promise_has_its_test_and_every_test_its_promise() -> None:
    named = set(re.findall(r"`(?:tests/security/)?(test_\w+\.py)`", (PROJECT_ROOT / "SECURITY.md").read_text()))

    assert named == {file.name for file in FOLDER.glob("test_*.py")}


def test_the_page_names_no_address_and_every_link_leads_somewhere() -> None:
    text = (PROJECT_ROOT / "SECURITY.md").read_text()

    assert not re.search(r"[\w.]+@[\w.]+\.\w+", text)
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (PROJECT_ROOT / link).exists(), link
