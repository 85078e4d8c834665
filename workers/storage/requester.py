"""Who stands behind an evaluation that a job starts."""

import uuid
from dataclasses import dataclass

from backend.domain.vocabulary import Role


@dataclass(frozen=True, slots=True)
class Asker:
    """A person for whom a job has something played."""

    person_id: uuid.UUID
    role: Role = Role.AUTHOR
    is_token: bool = False
