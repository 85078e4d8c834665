"""What one person may do in which project."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.domain.vocabulary import Role

DEFAULT_PROJECT = uuid.UUID("00000000-0000-4000-8000-000000000001")
"""Everything belongs to it until there is another project. It stays open to the team."""


@dataclass(frozen=True, slots=True)
class ProjectAccess:
    """The roles of one person. The role in the team holds in every open project that gives them no other one."""

    team_role: Role
    roles: Mapping[uuid.UUID, Role] = field(default_factory=dict)
    """By project, where they differ from the team role. Empty for administrators, whose role holds everywhere."""
    hidden: frozenset[uuid.UUID] = frozenset()
    """Restricted projects of which they are no member."""
    names: Mapping[uuid.UUID, str] = field(default_factory=dict)
    """Names of the projects that they see."""

    @property
    def is_uniform(self) -> bool:
        """Whether one role holds everywhere, so that no row has to be looked up."""
        return not self.roles and not self.hidden

    @property
    def highest(self) -> Role:
        """The highest role in any project."""
        return max((self.team_role, *self.roles.values()), key=list(Role).index)

    def role_in(self, project_id: uuid.UUID) -> Role | None:
        """Return the role in a project, or None if the person does not see it."""
        return None if project_id in self.hidden else self.roles.get(project_id, self.team_role)


def access_of(team_role: Role, limit: Role, projects: list[tuple[uuid.UUID, str, bool, Role | None]]) -> ProjectAccess:
    """Derive a person's access from all projects: id, name, whether it is restricted, the person's role there.

    `limit`: the highest role that a token allows.
    """

    def limited(role: Role) -> Role:
        return min(role, limit, key=list(Role).index)

    if team_role is Role.ADMIN:
        return ProjectAccess(limited(team_role), names={project_id: name for project_id, name, _, _ in projects})
    hidden = frozenset(project_id for project_id, _, is_restricted, role in projects if is_restricted and role is None)
    return ProjectAccess(
        limited(team_role),
        roles={
            project_id: limited(role)
            for project_id, _, _, role in projects
            if role is not None and limited(role) is not limited(team_role)
        },
        hidden=hidden,
        names={project_id: name for project_id, name, _, _ in projects if project_id not in hidden},
    )
