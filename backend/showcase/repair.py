"""The repaired version of `sloppy_guess`: the two careless decisions that its README names are taken back, no more."""

from collections.abc import Mapping

GAME = "server/sloppy_guess_environment.py"
REPAIRS = (
    (
        "openenv.yaml",
        "    on_unparsable: end  # careless: whoever breaks the format may leave with what was gained\n",
        '    on_unparsable: retry\n    unparsable_message: "Invalid."\n',
    ),
    (
        "openenv.yaml",
        "# careless: consistent guesses / guesses taken",
        "# consistent guesses / all ten attempts; a win keeps those that it saved",
    ),
    (
        GAME,
        '        """The fault: a share of the guesses *taken*, so that one safe guess and an early end are worth the'
        ' whole."""\n        return self._consistent_guesses / self._attempts\n',
        '        """Counted over all ten attempts, so that stopping early gains nothing; a win keeps those that it'
        ' saved."""\n        saved = ATTEMPTS - self._attempts if self._outcome == "win" else 0\n'
        "        return (self._consistent_guesses + saved) / ATTEMPTS\n",
    ),
)
"""(file, as it is, as it should be)."""


class OtherPackage(ValueError):
    """The repair was made for other files."""


def repaired(files: Mapping[str, str]) -> dict[str, str]:
    """The package with the repairs. Raises OtherPackage where it is not the one that they were made for."""
    mended = dict(files)
    for path, careless, careful in REPAIRS:
        if mended.get(path, "").count(careless) != 1:
            raise OtherPackage(f"{path} is another one than this repair was made for")
        mended[path] = mended[path].replace(careless, careful)
    return mended
