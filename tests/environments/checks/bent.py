"""Sound packages with one fault put in."""

from backend.environments.library import load_package
from tests.detectors.query_desk import query_desk
from tests.environments.checks.bad_rewards import HOLES, quiz

OPPONENT = 'chance = random.Random(f"{self._seed}:{self._board}")'
WIN = 'return {"win": 1.0, "draw": 0.5}.get(self._outcome or "", 0.0)'


NUMBERS = "server/number_guess_environment.py"
TEXTS = "server/reverse_text_environment.py"
UNREACHED = "".join(f'if self._answer == "{n}{n}" and self._text:\n            return 0.0\n        ' for n in range(20))


def bent(name: str, path: str, old: str, new: str) -> dict[str, str]:
    """The package with one text replaced, which must be there."""
    return bent_again(load_package(name), path, old, new)


def bent_again(files: dict[str, str], path: str, old: str, new: str) -> dict[str, str]:
    assert old in files[path], f"{old!r} is not in {path}"
    return files | {path: files[path].replace(old, new)}


def bent_game(old: str, new: str) -> dict[str, str]:
    return bent("tictactoe", "server/tictactoe_environment.py", old, new)


def bent_guess(old: str, new: str) -> dict[str, str]:
    return bent("number_guess", NUMBERS, old, new)


def bent_text(old: str, new: str) -> dict[str, str]:
    return bent("reverse_text", TEXTS, old, new)


def minding_the_case() -> dict[str, str]:
    """Capitals are declared to be as good, and are not."""
    files = bent("reverse_text", "openenv.yaml", "scripts: [gold,", "scripts: [variant_1, gold,")
    return bent_again(files, TEXTS, '{"gold": target,', '{"variant_1": target.upper(), "gold": target,')


def leaking_prompt() -> dict[str, str]:
    """The question comes with its answer in brackets."""
    files = bent("reverse_text", "openenv.yaml", '"{{ text }}"', '"{{ text }} ({{ message }})"')
    return bent_again(
        files,
        TEXTS,
        "ReverseTextObservation(text=self._text)",
        "ReverseTextObservation(text=self._text, message=self._text[::-1])",
    )


def paid_for_nothing() -> dict[str, str]:
    """An empty answer reaches the grader, which takes it for the right one."""
    files = bent("reverse_text", "openenv.yaml", "on_unparsable: end", "on_unparsable: pass")
    return bent_again(files, TEXTS, "return max(0.0, (", "return max(float(not self._answer), (")


def fading() -> dict[str, str]:
    """A column that earns less if the same task was played often: it depends on the order of grading."""
    files = bent_guess("self.begin_rewards()", "self.begin_rewards()\n        PLAYED[self._seed] += 1")
    files = bent_again(files, NUMBERS, "ATTEMPTS = 10\n", "ATTEMPTS = 10\nPLAYED = collections.Counter()\n")
    files = bent_again(files, NUMBERS, "import random\n", "import collections\nimport random\n")
    return bent_again(files, NUMBERS, "+ saved) / ATTEMPTS", "+ saved) / ATTEMPTS / (1 + PLAYED[self._seed] // 6)")


def salted() -> dict[str, str]:
    """Each process gives a different answer, always the same one."""
    files = bent_guess('return "Higher."', 'return "Higher." + SALT')
    files = bent_again(files, NUMBERS, "ATTEMPTS = 10\n", "ATTEMPTS = 10\nSALT = os.urandom(8).hex()\n")
    return bent_again(files, NUMBERS, "import random\n", "import os\nimport random\n")


def unordered() -> dict[str, str]:
    """A hint in the order of a set of strings, which is another one in a process with other string hashes."""
    return bent_guess('return "Higher."', 'return "Higher." + "".join(set("abcdefghijkl"))')


def interrupted() -> dict[str, str]:
    """Rewards only if no other session moves in between: a game alone is scored differently from concurrent games."""
    files = bent_guess("self._attempts += 1", "alone, MOVED[0] = MOVED[0] is self, self\n        self._attempts += 1")
    files = bent_again(files, NUMBERS, "return self.rewarded(self._observe(message))", PAID_ALONE)
    files = bent_again(files, NUMBERS, "self.begin_rewards()", "self.begin_rewards()\n        MOVED[0] = self")
    return bent_again(files, NUMBERS, "ATTEMPTS = 10\n", "ATTEMPTS = 10\nMOVED = [None]\n")


PAID_ALONE = "self._is_consistent = self._is_consistent and alone\n        return self.rewarded(self._observe(message))"


def resuming() -> dict[str, str]:
    """A game abandoned after one legal guess is continued by the next player with that number."""
    files = bent_guess("    @column\n    def win", CLOSE + "    @column\n    def win")
    files = bent_again(files, NUMBERS, "self._attempts += 1", "self._attempts += 1 + (self._seed in LEFT)")
    return bent_again(files, NUMBERS, "ATTEMPTS = 10\n", "ATTEMPTS = 10\nLEFT = set()\n")


CLOSE = """\
    def close(self) -> None:
        if self._attempts == 1 and not self._outcome and (self._low, self._high) != (1, HIGHEST):
            LEFT.add(self._seed)

"""


def dawdling() -> dict[str, str]:
    """Each step of every eighth task takes a third of its time limit."""
    pause = '__import__("time").sleep(0 if self._seed % 8 else 0.2)'
    files = bent_text("self._answer = action.text\n", f"self._answer = action.text\n        {pause}\n")
    return bent_again(files, "openenv.yaml", "step_timeout_seconds: 10", "step_timeout_seconds: 0.6")


def asking_for_more() -> dict[str, str]:
    """A tool's schema requires an argument that no policy gives."""
    return bent(
        "flight_desk",
        "openenv.yaml",
        "required: [origin, destination, day]",
        "required: [origin, destination, day, hour]",
    )


def lost_tool() -> dict[str, str]:
    """The action class takes other names than the manifest's tools."""
    old = 'tool: str = Field(description="Name of a tool; openenv.yaml lists them")'
    files = bent("flight_desk", "models.py", old, 'tool: Literal["search", "close_case"] = "search"')
    return bent_again(files, "models.py", "from typing import Any", "from typing import Any, Literal")


LIE = 'return self.rewarded(self._observe(message)).model_copy(update={"attempts_left": "many"})'

FAULTS = {
    "unseeded replies": (
        bent_game(OPPONENT, OPPONENT + " if not self._turns else random.Random()"),
        "step_deterministic",
    ),
    "unseeded opening": (
        bent_game('else "You start."', 'else f"You start {random.random()}."'),
        "reset_deterministic",
    ),
    "a reward that is not a number": (bent_game(WIN, 'return float("nan")'), "rewards_finite"),
    "infinite at the end only": (bent_game(WIN, 'return float("inf") if self._outcome else 0.0'), "rewards_finite"),
    "always pays": (
        bent_guess('1.0 if self._outcome == "win" else 0.0', "1.0 if self._outcome else 0.0"),
        "degenerate_policies",
    ),
    "raises in a step": (
        bent_game("self._turns += 1", "self._turns += 1 / 0 if self._turns else 1"),
        "steps_and_ends",
    ),
    "raises in a reset": (
        bent_game("self._board = EMPTY", 'self._board = EMPTY if level == 0 else {}["nothing"]'),
        "starts_and_resets",
    ),
    "a seed without effect": (
        bent_guess('random.Random(f"number:{self._seed}").randint(1, HIGHEST)', "42"),
        "seeds_differ",
    ),
    "gold that does not play well": (
        bent_game('"gold": gold_move(self._board)', '"gold": self._teach()'),
        "gold_reaches_bound",
    ),
    "a value outside of its range": (bent_game('"win": 1.0', '"win": 2.0'), "reward_in_range"),
    "a scalar of its own": (
        bent("tictactoe", "server/rewards.py", "observation.reward = sum(", "observation.reward = 0.25 + sum("),
        "columns_add_up",
    ),
    "sessions that share a board": (
        bent_guess("self._number = random", "type(self)._number = random"),
        "sessions_isolated",
    ),
    "a field that the action lacks": (bent("tictactoe", "openenv.yaml", "field: cell", "field: cel"), "agent_fits"),
    "a template of another observation": (
        bent("tictactoe", "openenv.yaml", "{{ message }}", "{{ massage }}"),
        "agent_fits",
    ),
    "a list of choices that is not there": (
        bent("tictactoe", "openenv.yaml", "choices: legal_moves", "choices: moves"),
        "agent_fits",
    ),
    "a column that fades with every play": (fading(), "group_noise"),
    "a process of its own mind": (salted(), "step_deterministic"),
    "an order that hashes decide": (unordered(), "step_deterministic"),
    "a score that others decide": (interrupted(), "rescore_equal"),
    "a late step that the next one feels": (resuming(), "timeouts_enforced"),
    "a tool that asks for more than it is given": (asking_for_more(), "agent_fits"),
    "a tool that the action does not take": (lost_tool(), "agent_fits"),
    "the answer in the prompt": (leaking_prompt(), "answer_hidden"),
    "the answer in the metadata": (
        bent_text(
            "return ReverseTextObservation(text=self._text)",
            'return ReverseTextObservation(text=self._text, metadata={"hint": self._text[::-1]})',
        ),
        "answer_hidden",
    ),
    "nothing is the right answer": (paid_for_nothing(), "untouched_task"),
    "a field of another type": (
        bent_guess("return self.rewarded(self._observe(message))", LIE),
        "observation_schema",
    ),
    "a grader that minds the case": (
        minding_the_case(),
        "format_variations",
    ),
    "a wrong answer that is paid in full": (bent_text('"wrong": self._text', '"wrong": target'), "quality_ladder"),
    "a held-out split that is trained on": (
        bent_text("make_text(self._seed, split,", 'make_text(self._seed % 40, "train",'),
        "splits_disjoint",
    ),
    "levels the wrong way round": (bent_game("= (1.0, 0.5, 0.0)", "= (0.0, 0.5, 1.0)"), "levels_monotone"),
    "success that is certain": (bent_guess('1.0 if self._outcome == "win" else 0.0', "1.0"), "success_mixed"),
    "success that never comes": (
        bent_guess('1.0 if self._outcome == "win" else 0.0', "0.0"),
        "success_mixed",
    ),
    "a win for a number that is none": (
        bent_guess("if guess == self._number:", "if guess == self._number or guess < 0:"),
        "malformed_action",
    ),
    "long texts that break it": (
        bent_text("self._answer = action.text\n", "self._answer = action.text[: 100 // (len(action.text) < 100)]\n"),
        "error_rate",
    ),
    "turns too short for the answer": (
        bent("reverse_text", "openenv.yaml", "max_tokens_per_turn: 128", "max_tokens_per_turn: 4"),
        "token_cost",
    ),
    "a fixture that does not hold": (
        load_package("reverse_text")
        | {"fixtures/copied.json": '{"replies": ["<reversed>a</reversed>"], "columns": {"exact": 1}}'},
        "fixtures_hold",
    ),
    "impossible tasks that can be solved": (
        bent("reverse_text", "openenv.yaml", "levels: 4}", "levels: 4, canaries: 0.02}"),
        "canaries_unsolvable",
    ),
    "a reward that pays every repetition": (query_desk(), "repeats_in_range"),
    "a reward for text that contains the answer": (
        HOLES["accepts any text that contains the answer"].bad,
        "wrong_answers_lose",
    ),
    "a reward for leaving early": (HOLES["pays for an early end"].bad, "effort_pays"),
    "a sum of small rewards": (HOLES["pays for each SELECT 1"].bad, "repetition_pays_less"),
    "a right answer that is sometimes wrong": (
        quiz("is_right = is_right and random.random() < 0.85"),  # so often that its form is still recognized
        "equal_answers_win",
    ),
    "an answer that is read for minutes": (
        quiz("import re\nre.fullmatch('(a+)+', text)"),
        "costly_answers_bounded",
    ),
    "a fixture that cannot be read": (load_package("reverse_text") | {"fixtures/odd.json": "{"}, "fixtures_hold"),
}
"""A package and the check that must fail. Many faults show in several checks."""

WARNINGS = {
    "a recorded answer that earns nothing": (quiz("is_right = False"), "answers_known"),
    "steps that take a third of their time": (dawdling(), "step_latency"),
    "a grader with more branches than answers reach": (
        bent_text("return 1.0 if self._answer ==", f"{UNREACHED}return 1.0 if self._answer =="),
        "branches_executed",
    ),
    "pays after the end": (
        bent_game(
            'raise RuntimeError("the game has ended: call reset first")', "return self.rewarded(self._observe(''))"
        ),
        "step_after_done",
    ),
    "a view of a field that no observation has": (
        bent("tictactoe", "openenv.yaml", "title: Board, field: board", "title: Board, field: bord"),
        "views_render",
    ),
}
"""A package and the check that must warn."""

FIRST = set(list(FAULTS)[:15])
"""Faults that are met by their own check before any other."""
SEEN_BY_ALL = {"long texts that break it"}
"""Faults that show in what all other checks have played."""
