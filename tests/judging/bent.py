"""Sound packages with one fault put in."""

from backend.environments.library import load_package

OPPONENT = 'chance = random.Random(f"{self._seed}:{self._board}")'
WIN = 'return {"win": 1.0, "draw": 0.5}.get(self._outcome or "", 0.0)'


def bent(name: str, path: str, old: str, new: str) -> dict[str, str]:
    """The package with one text replaced, which must be there."""
    files = load_package(name)
    assert old in files[path], f"{old!r} is not in {path}"
    return files | {path: files[path].replace(old, new)}


def bent_game(old: str, new: str) -> dict[str, str]:
    return bent("tictactoe", "server/tictactoe_environment.py", old, new)


def bent_guess(old: str, new: str) -> dict[str, str]:
    return bent("number_guess", "server/number_guess_environment.py", old, new)


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
        bent_game("_reply(gold_move(self._board))", "_reply(self._teach())"),
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
}
"""A package and the check that must fail first."""
