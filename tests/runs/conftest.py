"""Browsers of every role."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from anyio.from_thread import BlockingPortal
from fastapi import FastAPI
from sqlalchemy.orm import Session

from backend.app import Transaction
from backend.core.events import Hub
from tests.web_fixtures import *  # noqa: F403
from tests.web_fixtures import requests_in


@pytest.fixture
def app(whole_app: FastAPI, session: Session, portal: BlockingPortal) -> FastAPI:
    """The application; a live stream draws while its request's own transaction ends, so they take turns here."""
    whole_app.state.portal = portal
    whole_app.state.transaction = _in_turn(session)
    whole_app.state.hub = Hub()
    return whole_app


def _in_turn(session: Session) -> Transaction:
    transaction, lock = requests_in(session), threading.Lock()

    @contextmanager
    def turn() -> Iterator[Session]:
        with lock, transaction() as each:
            yield each

    return turn
