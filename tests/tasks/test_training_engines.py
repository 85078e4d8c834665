"""Which program a training run is started by."""

import subprocess
import sys

from sqlalchemy.orm import Session

from backend.domain.vocabulary import RunKind
from backend.settings import PROJECT_ROOT
from tests.factories import make_run
from workers.tasks.training import MODULE, module_of


def test_the_engine_decides_how_the_process_begins(session: Session) -> None:
    for engine, module in (("transformers", MODULE), ("vllm", MODULE), ("unsloth", "workers.training.with_unsloth")):
        assert module_of(make_run(session, kind=RunKind.TRAINING, configuration={"engine": engine})) == module
    assert module_of(make_run(session, kind=RunKind.TRAINING, configuration={})) == MODULE


def test_a_worker_without_unsloth_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers.training.with_unsloth", "x"], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    assert done.returncode
    assert "No module named 'unsloth'" in done.stderr
