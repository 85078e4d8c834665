"""The fields of an environment, each declared once: the list's columns, filters and sort orders follow.

`backend.environments.fields` has the SQL of each.
"""

from backend.domain.item_fields import ItemFields
from backend.domain.rollouts.fields import Field, FieldKind
from backend.domain.vocabulary import CheckStatus

_DECLARED = (
    Field("name", FieldKind.WORD, "name of the environment"),
    Field("version", FieldKind.NUMBER, "number of the latest version", is_whole=True),
    Field("certificate", FieldKind.CHOICE, "result of the latest version's checks", tuple(map(str, CheckStatus))),
    Field("rewards", FieldKind.TEXT, label="reward columns", is_filterable=False, is_sortable=False),
    Field("levels", FieldKind.NUMBER, "difficulty levels of the latest version", is_whole=True),
    Field("last_run", FieldKind.DATE, "when the last run was created", label="last runs"),
    Field("runs", FieldKind.NUMBER, "number of runs of all versions", is_whole=True),
    Field("built_in", FieldKind.YES_NO, "comes with Proctor", label="built-in", is_sortable=False),
    Field("tag", FieldKind.WORD, "a tag of the environment", label="tags", is_sortable=False),
    Field("pinned", FieldKind.YES_NO, "pinned to the top of the list", is_sortable=False, is_column=False),
    Field("description", FieldKind.TEXT, "text in the description", is_sortable=False, is_column=False),
    Field("note", FieldKind.TEXT, "text in the note", is_sortable=False),
    Field("owner", FieldKind.WORD, "member who created the environment"),
    Field("project", FieldKind.WORD, "name of the project"),
    Field("changed", FieldKind.DATE, "when the latest version was published, or the draft created"),
    Field("created", FieldKind.DATE, "when the environment was created"),
)
ENVIRONMENT_FIELDS = ItemFields(
    {field.name: field for field in _DECLARED},
    ("name", "version", "certificate", "rewards", "levels", "last_run", "changed"),
)
