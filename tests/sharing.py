"""Which test processes play what: tests that share something which takes long to make run in one of them."""

from collections.abc import Mapping

from xdist.scheduler import LoadScopeScheduling

SHARED: Mapping[str, str] = {
    "tests/exchange/test_others_read_it.py": "verifiers",
    "tests/importing/test_group_rewards.py": "verifiers",
    "tests/importing/test_verifiers_v0.py": "verifiers",
    "tests/importing/test_verifiers_v1.py": "verifiers",
    "tests/ops/test_cli_lessons.py": "a whole Proctor",
    "tests/ops/test_cli_of_runs.py": "a whole Proctor",
    "tests/ops/test_cli_steering.py": "a whole Proctor",
    "tests/ops/test_serve_a_stored_checkpoint.py": "a whole Proctor",
    "tests/ops/test_up.py": "a Proctor that is killed in part",
    "tests/proof/test_kill.py": "a Proctor that loses its processes",
}
"""By file, what its tests share: an installed package that would be waited for, a fixture of the session."""


class Together(LoadScopeScheduling):
    """Tests that share something go to one process, all others one by one to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return SHARED.get(nodeid.partition("::")[0], nodeid)
