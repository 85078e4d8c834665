"""The stand-in for a library that is imported and never used."""

import subprocess
import sys
from pathlib import Path

import pytest

from backend.settings import get_settings
from workers.environments.inside.absent import without

LIBRARY = "heavy_library_of_this_test"


@pytest.fixture(autouse=True)
def heavy_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{LIBRARY}.py").write_text("name = 'the real one'\n")
    (tmp_path / "page_of_this_test.py").write_text(
        f"import {LIBRARY} as library\n"
        "theme = library.themes.Soft(colour='red').set(shade=3)\n"
        "class Page(library.Blocks):\n    pass\n"
        "with library.Blocks() as page:\n    library.Markdown('hello')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "page_of_this_test", raising=False)
    monkeypatch.delitem(sys.modules, LIBRARY, raising=False)


def test_who_only_defines_things_with_it_is_imported_without_it() -> None:
    with without(LIBRARY):
        import page_of_this_test  # type: ignore[import-not-found]

    assert page_of_this_test.page is not None
    assert LIBRARY not in sys.modules


def test_afterwards_there_is_the_real_one() -> None:
    with without(LIBRARY):
        pass

    import heavy_library_of_this_test  # type: ignore[import-not-found]

    assert heavy_library_of_this_test.name == "the real one"


def test_one_that_is_there_already_is_left_alone() -> None:
    import heavy_library_of_this_test

    with without(LIBRARY):
        import heavy_library_of_this_test as again

    assert again is heavy_library_of_this_test


@pytest.mark.slow
def test_openenv_serves_without_its_web_page_and_a_package_may_still_import_gradio() -> None:
    program = (
        "import sys; from workers.environments.inside.absent import without\n"
        "with without('gradio'):\n    import openenv.core.env_server\n"
        "assert not [name for name in sys.modules if name.startswith(('gradio', 'pandas'))]\n"
        "import importlib.util; print(importlib.util.find_spec('gradio').origin)"
    )
    command = [str(get_settings().runtime_python), "-c", program]

    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": "."})

    assert done.stdout.strip().endswith("gradio/__init__.py")
