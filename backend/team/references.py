"""References to members in the addresses of operations."""

from backend.operations.declaration import reference
from backend.team.queries import find_member
from backend.team.tables import Person

reference(Person, "Id or email address of a member.")(find_member)
