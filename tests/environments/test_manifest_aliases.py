"""YAML aliases: a small text must not unfold to a manifest without end."""

import pytest

from backend.domain.environments.manifest import ManifestInvalid, line_of, read_manifest

_ALIASES = [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)]
BOMB = "variables:\n  a0: &a0 [x]\n" + "".join(_ALIASES)


@pytest.mark.parametrize("text", [BOMB, "variables: &a {again: *a}\n"])
def test_it_refuses_aliases_that_unfold_without_end(text: str):
    with pytest.raises(ManifestInvalid, match="unfold"):
        read_manifest(text)


def test_it_finds_the_line_of_a_key():
    assert line_of("a: 1\nb:\n  c: 2\n", "b", "c") == 3
    assert line_of("a: 1\nb:\n  c: 2\n", "b", "d") == 2
