"""The job `environments.import`: real env host, real Postgres, packages of every import style."""

import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import undefer

from backend.core.session import transaction
from backend.domain.environments.foreign import read_foreign
from backend.domain.environments.import_report import ImportReport, SeedEffect
from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import content_hash
from backend.domain.vocabulary import Role, RunStatus
from backend.environments.import_package import make_ready, write_manifest
from backend.environments.imports import ImportOptions, inspect_package, start_import, store_package
from backend.environments.schemas import StartImport
from backend.environments.tables import EnvironmentImport
from backend.settings import get_settings
from backend.web.identity import Actor
from tests.envhost_fixture import HostProcess
from tests.environments.importing.packages import STYLES, door_package
from tests.factories import make_person
from workers.environments.client import EnvHost
from workers.environments.packages import resources_of
from workers.tasks.environment_imports import give_up, run
from workers.tasks.registry import JobContext

Look = Callable[[dict[str, bytes]], EnvironmentImport]


@pytest.fixture
def look(found_host: HostProcess) -> Look:
    """Carry the import of these files out; returns its row."""

    def look(files: dict[str, bytes]) -> EnvironmentImport:
        with transaction() as session:
            row = EnvironmentImport(name="x", kind="", source="test", files={}, manifest={}, report={})
            store_package(row, *inspect_package(files, "", ImportOptions()))
            session.add(row)
            session.flush()
            import_id = row.id
        run(JobContext(uuid.uuid4(), None, {"import_id": str(import_id)}, 1))
        with transaction() as session:
            return session.get_one(EnvironmentImport, import_id, options=[undefer(EnvironmentImport.files)])

    return look


@pytest.mark.slow
def test_a_package_that_plays_gets_a_whole_report(look: Look):
    row = look(door_package())
    report = ImportReport.model_validate(row.report)
    assert (row.status, report.starts, report.why_not) == (RunStatus.COMPLETED, True, "")
    assert (report.sessions, report.seed, report.index_matters) == (4, SeedEffect.HONOURED, False)
    assert (report.played.longest, report.played.ended) == (1, report.played.episodes)
    assert report.played.reward_highest in {0.25, 1.25}
    [parts] = report.breakdowns
    assert (parts.path, parts.names, parts.adds_up) == ("parts", ["hit", "tidy"], True)
    assert [(leak.where, leak.in_observation) for leak in report.leaks] == [("state.expected_answer", False)]
    manifest = read_manifest(write_manifest(row.manifest, row.block))
    assert manifest.proctor.agent.action.choices == "legal_doors"


@pytest.mark.slow
def test_a_package_that_breaks_gets_a_report_and_becomes_nothing(look: Look):
    files = door_package() | {"server/app.py": b"import nothing_of_that_name\n"}
    row = look(files)
    report = ImportReport.model_validate(row.report)
    assert (row.status, report.starts, row.block, row.environment_id) == (RunStatus.COMPLETED, False, "", None)
    assert "nothing_of_that_name" in report.why_not


@pytest.mark.slow
def test_a_package_that_cannot_reset_says_so(look: Look):
    draws = b"self.door = random.Random(seed)"
    broken = door_package()["server/doors_environment.py"].replace(draws, b"raise ValueError('no doors')  # " + draws)
    row = look(door_package() | {"server/doors_environment.py": broken})
    assert "no episode can begin" in row.report["why_not"]
    assert "no doors" in row.report["why_not"]


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_every_import_style_is_served(look: Look, style: str):
    assert look(door_package(style)).report["why_not"] == ""


@pytest.fixture
def running_server(tmp_path: Path) -> Iterator[str]:
    """The address of the same package, served by a foreign uvicorn."""
    for path, data in door_package().items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [
            str(get_settings().runtime_python),
            "-m",
            "uvicorn",
            "server.app:app",
            "--fd",
            str(listener.fileno()),
        ]
        process = subprocess.Popen(command, cwd=tmp_path, pass_fds=[listener.fileno()])
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_running_server_is_scanned_where_it_runs(look: Look, running_server: str):
    with transaction() as session:
        person = make_person(session, Role.AUTHOR)
        author = Actor(person.id, Role.AUTHOR, is_token=True, name=person.name)
        import_id = start_import(session, author, StartImport(kind="remote", url=running_server, name="far_doors")).id
    run(JobContext(uuid.uuid4(), None, {"import_id": str(import_id), "url": running_server}, 1))
    with transaction() as session:
        row = session.get_one(EnvironmentImport, import_id)
    report = ImportReport.model_validate(row.report)
    assert (report.starts, report.why_not, report.seed) == (True, "", SeedEffect.HONOURED)
    manifest = read_manifest(write_manifest(row.manifest, row.block))
    assert manifest.proctor.resources.remote == running_server
    assert manifest.proctor.agent.action.field == "door"


@pytest.mark.slow
async def test_columns_come_from_the_dictionary_that_was_chosen(env_host: EnvHost):
    files = make_ready(read_foreign(door_package())).files
    block = "proctor:\n  columns_from: parts\n  resources: {memory_mb: 256, sessions: 4}\n"
    files["openenv.yaml"] += block
    digest = content_hash(files)
    await env_host.prepare(digest, files)
    with pytest.raises(ManifestInvalid):
        read_manifest(files["openenv.yaml"])  # no agent yet: the host does not need one
    async with env_host.lease(digest, resources_of(files["openenv.yaml"])) as server, server.session() as session:
        await session.reset({"seed": 1}, timeout=10)
        observation = await session.step({"door": 1}, timeout=10)
    assert set(observation.rewards) == {"hit", "tidy"}
    assert observation.rewards["tidy"] == 0.25


def test_an_import_that_is_given_up_states_why(committed_database: str):
    with transaction() as session:
        row = EnvironmentImport(name="x", kind="openenv", source="test", files={}, manifest={}, report={})
        session.add(row)
        session.flush()
        give_up(session, JobContext(uuid.uuid4(), None, {"import_id": str(row.id)}, 5), "the host is gone")
        assert (row.status, row.report["why_not"]) == (RunStatus.FAILED, "the host is gone")
