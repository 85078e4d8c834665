"""The fields of a checkpoint, each declared once: the list's columns, filters and sort orders follow.

`backend.checkpoints.fields` has the SQL of each.
"""

from backend.domain.item_fields import ItemFields
from backend.domain.rollouts.fields import Field, FieldKind
from backend.domain.training.configuration import Stage

_DECLARED = (
    Field("name", FieldKind.WORD, "stage and step, such as `grpo 40`", label="checkpoint"),
    Field("run", FieldKind.WORD, "name of the run that saved it"),
    Field("policy", FieldKind.WORD, "name of the policy"),
    Field("environment", FieldKind.WORD, "environment that the run trained on"),
    Field("version", FieldKind.NUMBER, "number of the environment version", is_whole=True),
    Field("stage", FieldKind.CHOICE, "stage of the training", tuple(map(str, Stage))),
    Field("step", FieldKind.NUMBER, "training step", is_whole=True),
    Field("heldout", FieldKind.NUMBER, "mean reward on the held-out tasks", label="held-out reward"),
    Field("best", FieldKind.YES_NO, "highest held-out reward of its run", is_sortable=False),
    Field("size", FieldKind.NUMBER, "size of the weights in bytes", is_whole=True),
    Field("stored", FieldKind.YES_NO, "its weights are stored, not pruned", is_sortable=False),
    Field("kept", FieldKind.YES_NO, "a member marked it to be kept", is_sortable=False),
    Field("exports", FieldKind.NUMBER, "number of finished exports", is_whole=True),
    Field("evaluations", FieldKind.NUMBER, "number of evaluations of it", is_whole=True),
    Field("tag", FieldKind.WORD, "a tag of the checkpoint", label="tags", is_sortable=False),
    Field("pinned", FieldKind.YES_NO, "pinned to the top of the list", is_sortable=False, is_column=False),
    Field("note", FieldKind.TEXT, "text in the note", is_sortable=False),
    Field("project", FieldKind.WORD, "name of the project"),
    Field("created", FieldKind.DATE, "when it was saved"),
)
CHECKPOINT_FIELDS = ItemFields(
    {field.name: field for field in _DECLARED},
    ("name", "run", "heldout", "best", "policy", "environment", "size", "created"),
)
