"""Where the editor says that a reward column is computed."""

from backend.domain.environments.manifest import RewardColumn
from backend.environments.validation import column_sources, functions_without_column

CODE = '''\
from rewards import column

class Game:
    @column
    def win(self):
        """One for a win.

        More words.
        """
        return 1.0

    @column
    def style(self):
        return 0.5

    def step(self):
        return {"rewards": {"gain": 1.0}}
'''


def columns(*names: str) -> list[RewardColumn]:
    return [RewardColumn(name=name, weight=1.0) for name in names]


def test_a_marked_method_is_named_with_its_line_and_first_words():
    [found] = column_sources(columns("win"), {"server/game.py": CODE})
    assert (found.path, found.line, found.words) == ("server/game.py", 5, "One for a win.")


def test_a_name_in_a_dictionary_is_found_where_no_function_is():
    [found] = column_sources(columns("gain"), {"server/game.py": CODE})
    assert (found.path, found.line, found.is_by_platform) == ("server/game.py", 17, False)


def test_a_marked_method_goes_before_a_mention_elsewhere():
    [found] = column_sources(columns("win"), {"a.py": "NAMES = ['win']\n", "server/game.py": CODE})
    assert found.path == "server/game.py"


def test_tests_and_clients_do_not_compute_columns():
    files = {"client.py": "x = 'win'", "tests/test_it.py": "def win(): ...", "inference.py": "'win'"}
    assert [source.path for source in column_sources(columns("win"), files)] == [""]


def test_columns_of_the_platform_are_said_to_be_so():
    [found] = column_sources(columns("format"), {"server/game.py": CODE})
    assert found.is_by_platform


def test_code_that_cannot_be_read_hides_nothing_else():
    [found] = column_sources(columns("win"), {"a.py": "def broken(", "b.py": CODE})
    assert found.path == "b.py"


def test_marked_methods_without_a_weight_are_reported():
    lost = functions_without_column(columns("win"), {"server/game.py": CODE})
    assert lost == [("style", "server/game.py", 13)]
