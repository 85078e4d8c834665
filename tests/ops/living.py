"""A whole Proctor that really runs, for tests of the command line that need workers, and what they do with it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from backend.core.artifacts import put_folder
from backend.core.embedded import socket_folder
from backend.core.session import transaction
from backend.domain.training.configuration import ModelChoice
from backend.domain.vocabulary import PolicyKind
from tests.factories import make_checkpoint, make_policy
from tests.installation import forget_settings
from tests.ops.commands import Command, command_line
from tests.ops.proctor_process import proctor_up

CONTEXT = 256
"""Tokens of the tiny model."""


@dataclass(frozen=True)
class Living:
    """Where it is."""

    url: str
    data: Path

    @property
    def token(self) -> str:
        return (self.data / "cli-token").read_text().strip()

    @property
    def variables(self) -> dict[str, str]:
        """For commands in separate processes."""
        return {"PROCTOR_URL": self.url, "PROCTOR_TOKEN": self.token}

    @contextmanager
    def rows(self) -> Iterator[None]:
        """`transaction()` and the artifacts of this process are those of the installation."""
        with pytest.MonkeyPatch.context() as patch:
            sockets = socket_folder(self.data)
            patch.setenv("DATABASE_URL", f"postgresql+psycopg://proctor@/postgres?host={sockets}")
            patch.setenv("PROCTOR_DATA", str(self.data))
            forget_settings()
            yield
        forget_settings()

    def add_checkpoint(self, name: str) -> str:
        """A local policy with one tiny untrained model that knows tic-tac-toe's words; the checkpoint's id."""
        from workers.models.build import build_model, build_tokenizer

        words = ["Invalid.", "You start.", *(f"<move>{n}</move> O plays {n}." for n in range(1, 10))]
        tokenizer = build_tokenizer(words * 9, context=CONTEXT)
        folder = self.data / name
        build_model(tokenizer, ModelChoice(context=CONTEXT), seed=5).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with self.rows(), transaction() as session:
            checkpoint = make_checkpoint(
                session, make_policy(session, name, kind=PolicyKind.LOCAL), step=7, is_best=True
            )
            put_folder(folder, checkpoint.artifact)
            return str(checkpoint.id)


@pytest.fixture(scope="session")
def living() -> Iterator[Living]:
    """One for all tests of this process. A short path: sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="pl-"))
    with proctor_up(folder / "data") as proctor:
        yield Living(proctor.wait_until_serving(), folder / "data")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def command(living: Living, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs a command as an administrator and says how it went."""
    with command_line(living.url, living.token, monkeypatch, capsys) as run:
        yield run
