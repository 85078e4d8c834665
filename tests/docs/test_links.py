"""Every relative link and anchor of the Markdown files leads somewhere, in the repository as on the site."""

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from docutils.nodes import make_id

import backend.app  # noqa: F401 - all errors are declared
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import ErrorKind, RunKind
from backend.errors import AppError, NotAllowed, NotFound
from backend.graders.service import GraderIsUsed
from backend.settings import PROJECT_ROOT
from backend.training.launch_form import launch_sections
from backend.web.docs_links import (
    ERRORS,
    FAILURES,
    SECTIONS,
    SETTINGS,
    section_about,
    section_about_error,
    section_about_failure,
    section_about_setting,
)
from backend.web.templating import TEMPLATES

GENERATED = {"cli.md", "settings.md", "api-operations.md", "check-list.md", "detector-list.md", "rollout-fields.md"}
PAGES = [
    *(PROJECT_ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(page for page in sorted((PROJECT_ROOT / "docs").rglob("*.md")) if page.name not in GENERATED),
]
CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`[^`\n]*`")
TARGET = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#{1,6} (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower() for heading in headings)
    return {
        "".join(c for c in text if c in "-_ " or unicodedata.category(c)[0] in "LN").replace(" ", "-") for text in plain
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT_ROOT)))
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    broken = []
    for found in TARGET.finditer(SPAN.sub("", CODE.sub("", page.read_text()))):
        path, _, anchor = (found[1] or found[2]).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        is_generated = target.parent == PROJECT_ROOT / "docs" and target.name in GENERATED
        if is_generated:
            continue
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(found[0])
    assert broken == []


IN_TEMPLATES = {
    section
    for template in TEMPLATES.rglob("*.html")
    for section in re.findall(r"""\bdocs\("([^"]+)"\)""", template.read_text())
}
LINKED = {*SECTIONS.values(), *SETTINGS.values(), *ERRORS.values(), *FAILURES.values(), *IN_TEMPLATES}


@pytest.mark.parametrize("section", sorted(LINKED))
def test_sections_that_pages_link_to_exist(section: str) -> None:
    """Anchors of the site, which docutils makes of headings."""
    page, _, anchor = section.partition("#")
    source = PROJECT_ROOT / "docs" / f"{page}.md"
    if source.name in GENERATED:
        assert not anchor
        return
    headings = re.findall(r"^#{1,6} (.+)$", CODE.sub("", source.read_text()), re.MULTILINE)
    assert not anchor or anchor in {make_id(heading.replace("`", "")) for heading in headings}


def test_every_setting_error_and_failure_has_a_section() -> None:
    blocks = {section.name for section in launch_sections(TrainingConfiguration())} - {""}
    assert blocks <= SETTINGS.keys()
    names = {field.name for section in launch_sections(TrainingConfiguration()) for field in section.fields}
    assert [name for name in SETTINGS if name not in names | blocks] == []
    assert section_about_setting("grpo.epsilon") == "/docs/training.html#losses"
    assert section_about_setting("grpo.steps") == "/docs/training.html#grpo"
    assert section_about_setting("threads") == "/docs/engines.html"
    assert {*ErrorKind, *RunKind} <= FAILURES.keys()
    assert section_about_failure(None) == "/docs/failures.html"
    assert section_about_error(NotAllowed(), "/runs") == "/docs/accounts.html#roles"
    assert section_about_error(GraderIsUsed(), "/policies") == "/docs/graders.html"
    assert section_about_error(NotFound(), "/runs/0190/rollouts") == "/docs/filters.html"
    classes = {each.__name__ for each in all_errors(AppError)} | {"SecretUnreadable"}
    assert {name for name in ERRORS if name[0].isupper()} <= classes


def all_errors(kind: type[AppError]) -> Iterator[type[AppError]]:
    for each in kind.__subclasses__():
        yield each
        yield from all_errors(each)


@pytest.mark.parametrize(
    ("path", "section"),
    [
        ("/", "get-started.html"),
        ("/environments/maze/edit", "authoring.html"),
        ("/environments/maze/versions/3", "certificate.html"),
        ("/runs/0190/rollouts", "filters.html"),
        ("/runs/chart", "results.html"),
        ("/runs", "evaluate.html"),
        ("/runsomething", "index.html"),
        ("/training/preflights/0190", "training.html#preflight"),
        ("/help/filters", "index.html"),
    ],
)
def test_a_page_links_to_the_section_about_it(path: str, section: str) -> None:
    assert section_about(path) == f"/docs/{section}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    """Paths of this repository, and the tests in the last column of `failures.md`."""
    text = page.read_text()
    folders = "backend|workers|tests|scripts|frontend|proctor_sandbox|deploy|benchmarks"
    named = {PROJECT_ROOT / path for path in re.findall(rf"`((?:{folders})/[\w./]+)`", text)}
    if page.name == "failures.md":
        named |= {PROJECT_ROOT / f"tests/{path}.py" for path in re.findall(r"`([\w/]+/test_\w+)`", text)}
    past = {
        PROJECT_ROOT / path
        for path in re.findall(r"`([\w/.]+)`,\s+which\s+the\s+repository\s+contains\s+up\s+to", text)
    }
    missing = {path for path in named - past if not path.exists()}
    assert [path for path in missing if not path.stem.endswith(("my_game", "my_pattern"))] == []
