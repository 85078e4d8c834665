"""Uploaded files are bounded before and while they are read: a small file cannot take a machine's memory."""

import base64
import io
import os
import resource
import struct
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from backend.core.session import transaction
from backend.domain.environments.packages import PackageInvalid, unpack
from backend.domain.vocabulary import Role
from backend.domain.zips import BadZip, open_zip, read_member
from backend.environments.import_sources import read_zip
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.formats.bounds import BadFile
from backend.rollouts.formats.reading import open_file
from backend.settings import PROJECT_ROOT
from backend.team.tables import ApiToken
from backend.web.identity import hash_secret
from tests.factories import make_environment, make_environment_version, make_person
from tests.web_server import web_of_installation
from workers.tasks import rollout_imports
from workers.tasks.registry import JobContext

MEBIBYTE = 1024**2
HONEST = [
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], "reward": 1.0, "task": task}
    for task in ({"split": "heldout", "index": 0, "level": 0, "seed": 10_000_000},)
]


# zips


def packed(method: int, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def lying(data: bytes, size: int) -> bytes:
    """The zip with another size for its files, in the list and before each of them."""
    changed = bytearray(data)
    for mark, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = changed.find(mark)
        while at >= 0:
            struct.pack_into("<L", changed, at + offset, size)
            at = changed.find(mark, at + 4)
    return bytes(changed)


def with_many_names(count: int) -> bytes:
    """A zip that lists one empty file many times."""
    data = packed(zipfile.ZIP_STORED, {"a.txt": b""})
    start, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    entry = data[start:end]
    tail = bytearray(data[end:])
    struct.pack_into("<HHL", tail, 8, count & 0xFFFF, count & 0xFFFF, len(entry) * count)
    return data[:start] + entry * count + bytes(tail)


@cache
def bomb_of(method: int) -> bytes:
    return packed(method, {"openenv.yaml": bytes(32 * MEBIBYTE)})


READERS: list[Callable[[bytes], object]] = [lambda data: read_zip(data, "x.zip"), unpack]


@pytest.mark.parametrize("read", READERS, ids=["import", "package"])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("said", [None, 10, 4_000_000])
def test_a_zip_that_unpacks_to_far_more_is_refused(
    read: Callable[[bytes], object], method: int, said: int | None
) -> None:
    data = bomb_of(method)
    assert len(data) < MEBIBYTE
    data = data if said is None else lying(data, said)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if said is None and read is READERS[0]:  # an import leaves a file out that says itself that it is too large
        assert read(data) == ({}, "x")
    else:
        with pytest.raises(PackageInvalid):
            read(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 24_000  # kB


@pytest.mark.parametrize("read", READERS, ids=["import", "package"])
def test_an_honest_zip_is_read(read: Callable[[bytes], object]) -> None:
    assert read(packed(zipfile.ZIP_DEFLATED, {"openenv.yaml": b"name: x\n"}))
    assert read(packed(zipfile.ZIP_STORED, {"openenv.yaml": b"name: x\n"}))


@pytest.mark.parametrize("read", READERS, ids=["import", "package"])
def test_a_zip_that_lists_endless_files_is_refused_before_they_become_objects(read: Callable[[bytes], object]) -> None:
    data = with_many_names(500_000)
    began = time.perf_counter()
    with pytest.raises(PackageInvalid, match="the zip holds more than"):
        read(data)
    assert time.perf_counter() - began < 0.2


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"PK\x05\x06", b"PK\x05\x06" + b"\xff" * 18, b"x" * 100_000])
def test_what_is_no_zip_is_refused_with_a_message(data: bytes) -> None:
    with pytest.raises(BadZip, match="zip"):
        open_zip(io.BytesIO(data), max_files=10, max_bytes=10)


def test_files_that_share_their_content_count_each() -> None:
    data = packed(zipfile.ZIP_DEFLATED, {"a": bytes(600_000), "b": bytes(600_000)})
    with open_zip(io.BytesIO(data), max_files=2, max_bytes=2_000_000) as archive:
        assert len(read_member(archive, archive.infolist()[0], 600_000)) == 600_000
        with pytest.raises(BadZip, match="far more"):
            read_member(archive, archive.infolist()[1], 400_000)


# tables


def parquet_of_one_long_value(path: Path, size: int, rows: int) -> None:
    """Each row is the same value, which the file holds once."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    table = pa.table({"messages": values, "reward": [1.0] * rows})
    options = {"dictionary_pagesize_limit": 10**9, "data_page_size": 10**9, "store_schema": False}
    pq.write_table(table, path, compression="zstd", write_statistics=False, **options)


def arrow_of_one_long_value(path: Path, size: int, rows: int) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    _write_arrow(path, pa.table({"messages": values}))


def arrow_of_endless_nulls(path: Path, size: int, rows: int) -> None:
    """A list of nulls has a length and no content."""
    offsets = pa.array([number * size for number in range(rows + 1)], pa.int32())
    _write_arrow(path, pa.table({"messages": pa.ListArray.from_arrays(offsets, pa.nulls(size * rows))}))


def arrow_of_nested_runs(path: Path, size: int, rows: int) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["x" * size]))
    _write_arrow(path, pa.table({"messages": runs}))


def _write_arrow(path: Path, table: Any) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)


BOMBS = [
    ("long.parquet", parquet_of_one_long_value, 80_000_000, 64),
    ("many.parquet", parquet_of_one_long_value, 8_000_000, 900_000),
    ("long.arrow", arrow_of_one_long_value, 80_000_000, 64),
    ("nulls.arrow", arrow_of_endless_nulls, 30_000_000, 64),
    ("runs.arrow", arrow_of_nested_runs, 80_000_000, 64),
]
READ = r"""
import re, sys
from pathlib import Path
from workers.tasks.rollout_imports import bound_memory
from backend.rollouts.formats.reading import open_file
from backend.rollouts.formats.bounds import BadFile
bound_memory()
for path in map(Path, sys.argv[1:]):
    try:
        rows = sum(1 for _ in open_file(path, path.parent).rows())
        print("rows", rows)
    except BadFile as error:
        print("refused:", error)
    print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def read_apart(*paths: Path) -> list[str]:
    """The import process's report on each file, and after each its peak memory so far in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *map(str, paths)], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-2 * len(paths) :]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write", "size", "rows"), BOMBS, ids=[name for name, *_ in BOMBS])
def test_a_table_that_spells_out_to_far_more_is_refused_in_little_memory(
    tmp_path: Path, name: str, write: Callable[[Path, int, int], None], size: int, rows: int
) -> None:
    path, honest = tmp_path / name, tmp_path / f"honest-{name}"
    write(path, size, rows)
    assert path.stat().st_size < 2 * MEBIBYTE
    write(honest, 1000, 64)
    of_honest, _, told, peak = read_apart(honest, path)
    assert told.startswith("refused: ")
    assert int(peak) < 1300
    assert of_honest == (
        "refused: column messages: the type run_end_encoded<run_ends: int32, values: string> is not supported"
        if name.startswith("runs")
        else "rows 64"
    )


def test_metadata_that_states_too_much_is_refused_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"c{number}": [1] for number in range(1_001)}), path)
    with pytest.raises(BadFile, match="1,000 columns"):
        list(open_file(path, tmp_path).rows())
    deep: Any = pa.string()
    for _ in range(17):
        deep = pa.list_(deep)
    pq.write_table(pa.table({"messages": pa.array([None], deep)}), path)
    with pytest.raises(BadFile, match="nested deeper"):
        list(open_file(path, tmp_path).rows())


def test_a_line_nested_without_end_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_bytes(b'{"messages": []}\n{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    with pytest.raises(BadFile, match="line 2"):
        list(open_file(path, tmp_path).rows())


# through the web and a worker


@pytest.fixture
def api(installation: None) -> Iterator[TestClient]:
    with transaction() as session:
        person = make_person(session, Role.ADMIN)
        token = hash_secret("pt_x")
        session.add(ApiToken(person_id=person.id, name="t", prefix="pt_", token_hash=token, role=Role.ADMIN))
    headers = {"Authorization": "Bearer pt_x"}
    client = TestClient(web_of_installation(), headers=headers, base_url="http://testserver/api/v1")
    yield client
    client.close()


@pytest.fixture
def version(installation: None) -> EnvironmentVersion:
    with transaction() as session:
        return make_environment_version(session, make_environment(session, "tictactoe"))


def imported(api: TestClient, name: str, content: bytes) -> dict[str, Any]:
    answer = api.post("/rollouts/import", files={"file": (name, content)}, data={"environment": "tictactoe"})
    assert answer.status_code == 201, answer.text
    run_id = uuid.UUID(answer.json()["id"])
    rollout_imports.run(JobContext(uuid.uuid4(), run_id, {}, 1))
    found: dict[str, Any] = api.get(f"/runs/{run_id}").json()
    return found


@pytest.mark.slow
def test_a_parquet_bomb_ends_its_run_with_a_message_and_an_honest_file_is_imported(
    api: TestClient, version: EnvironmentVersion, tmp_path: Path
) -> None:
    bomb = tmp_path / "bomb.parquet"
    parquet_of_one_long_value(bomb, 80_000_000, 64)
    run = imported(api, "bomb.parquet", bomb.read_bytes())
    assert run["status"] == "failed"
    assert "memory" in run["reason"] or "MiB" in run["reason"]
    assert imported(api, "honest.jsonl", b"\n".join(map(orjson.dumps, HONEST)))["status"] == "completed"


def test_the_web_reads_no_table_under_another_name(
    api: TestClient, version: EnvironmentVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table inside a zip whose name suggests text is read by a worker."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the web reads a table")

    bomb = tmp_path / "bomb.parquet"
    parquet_of_one_long_value(bomb, 1_000_000, 64)
    content = packed(zipfile.ZIP_DEFLATED, {"results.jsonl": bomb.read_bytes()})
    monkeypatch.setattr(pq, "ParquetFile", fail)
    answer = api.post("/rollouts/import", files={"file": ("r.zip", content)}, data={"environment": "tictactoe"})
    assert answer.status_code == 201


def test_the_web_unpacks_little_of_a_zip(api: TestClient, version: EnvironmentVersion) -> None:
    line = orjson.dumps({**HONEST[0], "extra": "x" * 900_000}) + b"\n"
    content = packed(zipfile.ZIP_DEFLATED, {"rollouts.jsonl": line * 60})
    began = time.perf_counter()
    answer = api.post("/rollouts/import", files={"file": ("r.zip", content)}, data={"environment": "tictactoe"})
    assert answer.status_code == 201
    assert answer.json()["configuration"].get("tasks", 1) == 1  # nothing was counted: a worker will
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("role", ["stranger", "author"])
def test_bodies_are_bounded_by_route(request: pytest.FixtureRequest, role: str) -> None:
    client: TestClient = request.getfixturevalue(role)
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    body = b'{"name": "' + b"x" * (9 * MEBIBYTE) + b'"}'
    for path in ("/api/v1/policies", "/api/v1/tokens", "/api/v1/evaluations"):
        assert client.post(path, content=body, headers=headers).status_code == 413, path
        assert client.post(path, content=iter([body]), headers=headers).status_code == 413, path
        assert client.post(path, content=b"{}", headers=headers).status_code in {401, 403, 422}, path


def test_a_package_in_json_may_be_as_large_as_a_zip(author: TestClient) -> None:
    content = packed(zipfile.ZIP_STORED, {"openenv.yaml": b"name: large\n", "data.bin": os.urandom(20 * MEBIBYTE)})
    body = {"kind": "zip", "archive": base64.b64encode(content).decode(), "name": "large"}
    answer = author.post("/api/v1/imports", json=body)
    assert answer.status_code in {201, 422}, answer.text
    refused = author.post("/api/v1/imports", json=body | {"archive": "no base64!"})
    assert refused.status_code == 422
    assert "archive" in refused.json()["fields"]
