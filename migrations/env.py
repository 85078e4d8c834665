"""Alembic's entry: the models are the target; a migration itself never imports application code."""

from alembic import context

from backend.core.session import make_engine
from backend.core.tables import load_tables
from backend.settings import get_settings


def run() -> None:
    url = context.config.get_main_option("sqlalchemy.url") or get_settings().database_url
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            context.configure(connection=connection, target_metadata=load_tables(), compare_type=True)
            with context.begin_transaction():
                context.run_migrations()
    finally:
        engine.dispose()


run()
