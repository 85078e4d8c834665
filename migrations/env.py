"""Alembic's entry: the models are the target; a migration itself never imports application code."""

from alembic import context

from backend.db.models import Base
from backend.db.session import make_engine
from backend.settings import get_settings


def run() -> None:
    url = context.config.get_main_option("sqlalchemy.url") or get_settings().database_url
    engine = make_engine(url)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()
