"""What all models share: naming of constraints, column types and the text enum."""

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from sqlalchemy import DateTime, Enum, MetaData, func
from sqlalchemy.dialects.postgresql import JSONB, UUID
from sqlalchemy.orm import DeclarativeBase, mapped_column

from backend.domain.ids import new_id


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB,
        datetime: DateTime(timezone=True),
    }


def text_enum(kind: type[StrEnum]) -> Enum:
    """Stored as text with a CHECK."""
    return Enum(
        kind,
        native_enum=False,
        create_constraint=True,
        length=32,
        name=kind.__name__.lower(),
        values_callable=lambda values: [str(value) for value in values],
        validate_strings=True,
    )


Id = Annotated[uuid.UUID, mapped_column(UUID(as_uuid=True), primary_key=True, default=new_id)]
CreatedAt = Annotated[datetime, mapped_column(server_default=func.now())]
