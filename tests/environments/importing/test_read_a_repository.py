"""Repositories are read from a real git server; what they or their server try is refused with a clear word."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.environments.packages import PackageInvalid
from backend.environments import import_sources
from backend.environments.import_sources import read_repository
from backend.settings import get_settings
from tests.environments.importing.packages import door_package
from tests.environments.importing.repository import Repository, git, served


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with served(tmp_path) as found:
        yield found


def doors(folder: str = "envs/doors") -> dict[str, bytes]:
    return {f"{folder}/{path}": data for path, data in door_package().items()}


def test_the_files_of_a_folder_are_read(repository: Repository):
    repository.commit({**doors(), "README.md": b"many", "envs/other/a.py": b""})
    assert read_repository(repository.url, path="envs/doors") == doors()
    assert set(read_repository(repository.url)) == {*doors(), "README.md", "envs/other/a.py"}
    assert read_repository(f"file://{repository.folder}", path="/envs/doors/", is_own=True) == doors()


def test_a_branch_is_read(repository: Repository):
    repository.commit({"a.txt": b"old"}, branch="v1")
    repository.commit({"a.txt": b"new"})
    assert read_repository(repository.url, "v1") == {"a.txt": b"old"}
    with pytest.raises(PackageInvalid, match="no such branch or tag"):
        read_repository(repository.url, "nothing")


def test_links_and_hooks_do_nothing(repository: Repository, tmp_path: Path):
    os.symlink("/etc/passwd", repository.folder / "secret.txt")
    os.symlink("/etc", repository.folder / "folder")
    hooks = {".git-hooks/post-checkout": b"#!/bin/sh\ntouch /tmp/imports-hook\n", ".gitattributes": b"* filter=evil\n"}
    repository.commit({"a.py": b"1", **hooks})
    files = read_repository(repository.url)
    assert set(files) == {"a.py", *hooks}


def test_a_submodule_is_named(repository: Repository):
    repository.commit({"a.py": b"1"})
    head = git(repository.folder, "rev-parse", "HEAD")
    git(repository.folder, "update-index", "--add", "--cacheinfo", f"160000,{head},inner")
    git(repository.folder, "commit", "-qm", "inner")
    assert set(read_repository(repository.url)) == {"a.py"}
    with pytest.raises(PackageInvalid, match="inner is a submodule"):
        read_repository(repository.url, path="inner")


def test_a_tree_that_unfolds_without_end_is_refused(repository: Repository):
    """Ten levels of ten equal folders: a few kilobytes that a checkout would make ten thousand million files of."""
    blob = git(repository.folder, "hash-object", "-w", "--stdin", given=b"x")
    tree = git(repository.folder, "mktree", given="".join(f"100644 blob {blob}\tf{n}\n" for n in range(10)).encode())
    for _ in range(9):
        lines = "".join(f"040000 tree {tree}\tf{n}\n" for n in range(10))
        tree = git(repository.folder, "mktree", given=lines.encode())
    repository.commit_tree(tree)
    began = time.monotonic()
    with pytest.raises(PackageInvalid, match=r"holds more than .* files: name the package's folder"):
        read_repository(repository.url)
    assert time.monotonic() - began < 20


def test_a_huge_repository_is_refused(repository: Repository, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_sources, "MAX_PACK_BYTES", 1_000_000)
    repository.commit({"big.bin": os.urandom(4_000_000)})
    with pytest.raises(PackageInvalid, match="larger than 1,000,000 bytes"):
        read_repository(repository.url)


def test_many_bytes_in_small_files_are_refused(repository: Repository, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_sources, "MAX_UNPACKED_BYTES", 1000)
    repository.commit({"a.txt": b"x" * 600, "b.txt": b"y" * 600, "small/c.txt": b"z"})
    with pytest.raises(PackageInvalid, match="more than 1,000 bytes: name the package's folder"):
        read_repository(repository.url)
    assert read_repository(repository.url, path="small") == {"small/c.txt": b"z"}


def test_a_path_that_is_not_there_or_leads_outside_is_refused(repository: Repository):
    repository.commit({"a.py": b"1"})
    for path, told in (("envs/maze", "no folder 'envs/maze'"), ("a.py", "no folder"), (":(glob)*", "no folder")):
        with pytest.raises(PackageInvalid, match=told.replace("(", r"\(")):
            read_repository(repository.url, path=path)
    with pytest.raises(PackageInvalid, match="leads outside"):
        read_repository(repository.url, path="../../etc")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc",
        "/etc",
        "ext::sh -c 'touch /tmp/imports-ext'",
        "--upload-pack=touch /tmp/imports-option",
        "ssh://-oProxyCommand=touch/x",
        "git://127.0.0.1/x",
        "http://user:password@127.0.0.1/x",
    ],
)
def test_only_web_addresses_are_requested_others(url: str):
    with pytest.raises(PackageInvalid):
        read_repository(url)


def test_a_reference_is_no_option(repository: Repository):
    with pytest.raises(PackageInvalid, match="there is no branch or tag"):
        read_repository(repository.url, "--upload-pack=touch /tmp/imports-option")
    assert repository.asked == []


def test_a_redirect_is_not_followed(repository: Repository):
    repository.commit({"a.py": b"1"})
    with pytest.raises(PackageInvalid, match="redirects"):
        read_repository(repository.url.replace("/it.git", "/elsewhere/it.git"))
    assert all(path.startswith("/elsewhere/") for path in repository.asked)


@pytest.mark.slow
def test_a_server_that_sends_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_sources, "CLONE_SECONDS", 1.0)
    with served(tmp_path, "slow") as repository:
        began = time.monotonic()
        with pytest.raises(PackageInvalid, match="took longer than 1 s"):
            read_repository(repository.url)
        assert time.monotonic() - began < 10


def test_private_addresses_are_refused_where_they_are_not_allowed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    get_settings.cache_clear()
    try:
        with pytest.raises(PackageInvalid, match="private network"):
            read_repository(repository.url)
    finally:
        monkeypatch.undo()
        get_settings.cache_clear()
    assert repository.asked == []


def test_an_empty_repository_says_so(repository: Repository):
    with pytest.raises(PackageInvalid, match=r"no commit|cannot be cloned"):
        read_repository(repository.url)
