"""Conversations become searchable after their rollout was stored: run by run, each rollout once, later ones too."""

import pytest
from sqlalchemy import delete, select

from backend.core.session import transaction
from backend.domain.vocabulary import RunKind
from backend.policies.tables import Policy
from backend.rollouts.tables import RolloutText
from backend.runs.tables import Run
from tests import factories
from workers.tasks.housekeeping import index_texts


@pytest.mark.usefixtures("installation")
def test_every_run_is_indexed_once_and_continues_where_it_stopped() -> None:
    said = [{"role": "assistant", "reasoning": "Hmm, HERE", "content": "I take\nthe Centre"}, {"role": "user"}]
    with transaction() as session:
        runs = [factories.make_run(session) for _ in range(3)]
        play = factories.make_run(session, kind=RunKind.PLAY)
        for run in (*runs, play):
            factories.make_rollouts(session, run, [[1, 1, 0]] * 4, messages=said)
    try:
        assert index_texts(20) == 12
        assert index_texts(20) == 0
        with transaction() as session:
            again = session.get_one(Run, runs[1].id)
            factories.make_rollouts(session, again, [[1, 1, 0]] * 2, messages=said, step=1)
        assert index_texts(20) == 2
        with transaction() as session:
            bodies = session.scalars(select(RolloutText.body).where(RolloutText.run_id == runs[1].id)).all()
        assert bodies == ["hmm, here\ni take\nthe centre\n"] * 6
    finally:
        with transaction() as session:
            session.execute(delete(Run))
            session.execute(delete(Policy))
