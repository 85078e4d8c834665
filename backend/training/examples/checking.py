"""Is there anything to learn from? Asked before a training run is queued."""

import uuid
from collections.abc import Sequence

from sqlalchemy.orm import Session

from backend.domain.training.configuration import TrainingConfiguration
from backend.errors import InvalidInput
from backend.training.examples.files import deleted_at
from backend.training.examples.scripted import check_script_filter
from backend.training.examples.sources import Asked, chosen_rollouts, demonstrated_rollouts
from backend.training.tables import LessonFile


def check_sources(session: Session, configuration: TrainingConfiguration, version_ids: Sequence[uuid.UUID]) -> None:
    """Raises InvalidInput at the field whose source holds nothing."""
    choice = configuration.sft
    if not configuration.recipe.has_sft:
        return
    if choice.uses("script") and choice.script_where.strip():
        check_script_filter(session, choice.script_where, version_ids)
    if choice.uses("file"):
        file = session.get(LessonFile, choice.file)
        if file is None or deleted_at(file) is not None:
            raise InvalidInput(fields={"sft.file": "There is no such file of conversations."})
    if choice.uses("rollouts") and not chosen_rollouts(session, choice, Asked(tuple(version_ids))).ids:
        where = "sft.where" if choice.where.strip() else "sft.runs"
        told = "No stored rollout passes. Play training tasks (split train): held-out ones never come in."
        raise InvalidInput(fields={where: told})
    if choice.demonstrations and not demonstrated_rollouts(session, version_ids):
        told = "No episode of this version is marked: mark some, or set this to 0."
        raise InvalidInput(fields={"sft.demonstrations": told})
