"""How training settings are declared.

Each setting is declared once, as a field of a block: its type, default and limits in the field, its help in the
docstring below, and its place on the launch page in `setting`. The launch page, `proctor train --set`, the JSON API,
configuration files and the pre-flight derive from this.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

from backend.domain.described import Described

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Share = Annotated[float, Field(ge=0, le=1)]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Card:
    """One value of a setting that is shown as cards."""

    value: str
    label: str
    note: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How the launch page shows a setting."""

    label: str = ""
    """Default: made from the name of the field."""
    is_basic: bool = False
    """Shown at once. Other settings of a section are folded."""
    only: str = ""
    """The settings with which it has an effect: `model.source=base|checkpoint`, alternatives separated by a semicolon;
    empty: always. It is hidden otherwise."""
    is_wide: bool = False
    chosen_from: str = ""
    """The list that its value is chosen from: `checkpoints` or `example_files`."""
    cards: tuple[Card, ...] = ()
    section: str = ""
    """The section of a setting outside a block."""


def setting(default: T, label: str = "", **details: Any) -> T:
    """Declare a setting by its default and label, further details of `Setting`, and limits as in `Field`."""
    place = {name: details.pop(name) for name in Setting.__slots__ if name in details}
    field = Field(default, **details)
    field.metadata.append(Setting(label, **place))
    return cast(T, field)


def setting_of(field: FieldInfo) -> Setting:
    return next((each for each in field.metadata if isinstance(each, Setting)), Setting())


class Block(Described):
    """A section of settings. Its docstring is the help of the section. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: ClassVar[str] = ""
    only: ClassVar[str] = ""
    """As `Setting.only`, for the whole section."""
