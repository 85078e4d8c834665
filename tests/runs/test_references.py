"""How a text names a run."""

import pytest
from sqlalchemy.orm import Session

from backend.errors import NotFound
from backend.runs.references import find_run
from tests.factories import make_run


def test_a_run_is_named_by_its_id_by_the_end_of_it_or_as_the_last(session: Session) -> None:
    run, newest = make_run(session), make_run(session)
    for text in (str(run.id), run.id.hex, run.id.hex[-8:], run.id.hex[-8:].upper()):
        assert find_run(session, text).id == run.id
    assert find_run(session, "last").id == newest.id


@pytest.mark.parametrize("text", ["", "abc", "0" * 8, "%%%%", "00000000-0000-0000-0000-000000000000"])
def test_any_other_text_names_none(session: Session, text: str) -> None:
    make_run(session)
    with pytest.raises(NotFound):
        find_run(session, text)
