"""Which files of a foreign folder are imported, and which are skipped."""

import pytest

from backend.domain.environments.foreign import MAX_BINARY_BYTES, PackageKind, read_foreign
from backend.domain.environments.packages import PackageInvalid, file_as_bytes
from tests.environments.importing.packages import door_package

VERIFIERS = {
    "pyproject.toml": b'[project]\nname = "my-env"\n',
    "my_env.py": b"import verifiers as vf\ndef load_environment():\n    ...\n",
}


def test_a_package_is_found_in_the_folder_that_holds_it():
    files = {f"repo/envs/doors/{path}": data for path, data in door_package().items()}
    package = read_foreign({**files, "repo/README.md": b"hello"})
    assert (package.kind, package.folder) == (PackageKind.OPENENV, "doors")
    assert set(package.files) == set(door_package())


def test_several_packages_have_to_be_distinguished():
    files = {f"{name}/{path}": data for name in ("a", "b") for path, data in door_package().items()}
    with pytest.raises(PackageInvalid, match="holds 2 packages: select one by its path, one of a, b"):
        read_foreign(files)
    assert read_foreign(files, path="b").folder == "b"


def test_a_package_inside_of_another_is_part_of_it():
    files = door_package() | {"examples/small/openenv.yaml": b"name: small\n"}
    assert "examples/small/openenv.yaml" in read_foreign(files).files


def test_the_generations_of_verifiers_are_reported_by_their_code():
    assert read_foreign(VERIFIERS).kind is PackageKind.VERIFIERS_V0
    taskset = VERIFIERS | {"my_env.py": b"import verifiers.v1 as vf\nclass T(vf.Taskset):\n    ...\n"}
    assert read_foreign(taskset).kind is PackageKind.VERIFIERS_V1


@pytest.mark.parametrize("files", [{"README.md": b"hello"}, {"my_env.py": VERIFIERS["my_env.py"]}, {}])
def test_what_is_no_package_is_refused(files: dict[str, bytes]):
    with pytest.raises(PackageInvalid):
        read_foreign(files)


def test_secrets_and_what_tools_made_stay_behind():
    files = door_package() | {".env": b"KEY=1", "server/key.pem": b"x", "__pycache__/a.pyc": b"\0", "uv.lock": b"x"}
    package = read_foreign(files)
    assert {left.path: left.why for left in package.left_out} == dict.fromkeys(
        [".env", "server/key.pem"], "it may hold a secret"
    )
    assert set(package.files) == set(door_package())


def test_a_small_binary_that_the_code_names_is_carried_whole():
    data = bytes(range(256)) * 4
    code = {"server/data.py": b'PATH = "words.npz"\n'}
    package = read_foreign(door_package() | code | {"assets/words.npz": data, "logo.png": b"\x89PNG\xff"})
    assert package.carried == ["assets/words.npz"]
    assert file_as_bytes("assets/words.npz.base64", package.files["assets/words.npz.base64"]) == (
        "assets/words.npz",
        data,
    )
    assert [(left.path, left.why) for left in package.left_out] == [("logo.png", "binary, and not named in the code")]


def test_a_large_binary_is_named_and_excluded():
    code = {"server/data.py": b'PATH = "words.npz"\n'}
    package = read_foreign(door_package() | code | {"words.npz": b"\xff" * (MAX_BINARY_BYTES + 1)})
    [left] = package.left_out
    assert "larger than" in left.why


def test_a_pointer_to_large_file_storage_is_not_taken_for_the_file():
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    [left] = read_foreign(door_package() | {"data.json": pointer}).left_out
    assert "Git LFS" in left.why
