"""A package's files: paths, limits, hash and zip."""

import io
import zipfile

import pytest

from backend.domain.environments.packages import (
    PackageInvalid,
    binary_as_text,
    check_files,
    content_hash,
    file_as_bytes,
    pack,
    unpack,
)

FILES = {"openenv.yaml": "name: a\n", "server/app.py": "app = 1\n"}


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../b", "a//b", "", ".", "a b", "ä", "a/" * 9 + "b", "a\\b", "a\n"]
)
def test_it_refuses_a_path_that_is_not_plain(path: str):
    with pytest.raises(PackageInvalid, match="plain relative path"):
        check_files({**FILES, path: ""})


def test_the_hash_does_not_depend_on_the_order():
    assert content_hash(FILES) == content_hash(dict(reversed(FILES.items())))


def test_the_hash_keeps_paths_and_contents_apart():
    assert content_hash({"a": "bc"}) != content_hash({"ab": "c"})


def test_a_zip_comes_back_as_it_went():
    assert unpack(pack(FILES)) == FILES
    assert pack(FILES) == pack(dict(reversed(FILES.items())))


def test_what_is_no_text_is_carried_and_restored():
    path, text = binary_as_text("data/board.png", b"\x89PNG\xff")
    assert file_as_bytes(path, text) == ("data/board.png", b"\x89PNG\xff")
    with zipfile.ZipFile(io.BytesIO(pack({path: text, "a.txt": "b"}, as_on_disk=True))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "data/board.png": b"\x89PNG\xff",
            "a.txt": b"b",
        }


@pytest.mark.parametrize("text", ["Maße", "===="])
def test_a_text_file_that_is_named_like_a_binary_one_stays_text(text: str):
    assert file_as_bytes("notes.md.base64", text) == ("notes.md.base64", text.encode())


def test_it_refuses_a_package_without_a_manifest():
    with pytest.raises(PackageInvalid, match=r"openenv\.yaml"):
        check_files({"a.py": ""})


def test_it_refuses_a_path_that_is_a_file_and_a_folder():
    with pytest.raises(PackageInvalid, match="a file and a folder"):
        check_files({"openenv.yaml": "", "server": "", "server/app.py": ""})


@pytest.mark.parametrize("text", ["\x00", "\ud800"])
def test_it_refuses_what_is_not_text(text: str):
    with pytest.raises(PackageInvalid, match="not text"):
        check_files({"openenv.yaml": text})


def test_it_refuses_an_encrypted_zip():
    data = bytearray(pack(FILES))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    with pytest.raises(PackageInvalid, match="encrypted"):
        unpack(bytes(data))


def test_it_refuses_a_zip_that_unfolds_too_far():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("openenv.yaml", "a" * 10_000_000)
    with pytest.raises(PackageInvalid, match="more than 200 files or 5,000,000 bytes"):
        unpack(buffer.getvalue())


def test_it_refuses_what_is_not_a_zip():
    with pytest.raises(PackageInvalid):
        unpack(b"not a zip")
