"""Which test processes play what: tests that share something which takes long to make run in one of them."""

from collections.abc import Mapping

from xdist.scheduler import LoadScopeScheduling

SHARED: Mapping[str, str] = {
    "tests/environments/host/test_sources.py": "an env host with sources to build",
    "tests/rollouts/exchange/test_others_read_it.py": "verifiers",
    "tests/environments/importing/test_group_rewards.py": "verifiers",
    "tests/environments/importing/test_verifiers_v0.py": "verifiers",
    "tests/environments/importing/test_verifiers_v1.py": "verifiers",
    "tests/environments/checks/test_certify_a_version.py": "a certificate",
    "tests/detectors/test_detectors_on_whole_runs.py": "played episodes",
    "tests/docs/test_site.py": "the documentation",
    "tests/security/test_data_folder.py": "a stopped database",
    "tests/ops/test_cli_exports.py": "a whole Proctor",
    "tests/ops/test_cli_lessons.py": "a whole Proctor",
    "tests/ops/test_cli_of_runs.py": "a whole Proctor",
    "tests/ops/test_cli_steering.py": "a whole Proctor",
    "tests/ops/test_serve_a_stored_checkpoint.py": "a whole Proctor",
    "tests/ops/test_supervised.py": "a Proctor that loses its processes",
    "tests/proof/test_kill.py": "a Proctor that loses its processes",
    "tests/training/test_evaluate_checkpoint.py": "a process that forks trainings",
    "tests/training/test_export.py": "an export",
    "tests/training/test_grpo_losses.py": "a step of each loss",
    "tests/training/test_run.py": "a training run",
    "tests/training/test_run_resumed.py": "a process that forks trainings",
    "tests/training/test_steering.py": "a process that forks trainings",
    "tests/training/test_warm_up_sources.py": "a process that forks trainings",
}
"""By file, what its tests share: an installed package that would be waited for, a fixture of the session."""


class Together(LoadScopeScheduling):
    """Tests that share something go to one process, all others one by one to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return SHARED.get(nodeid.partition("::")[0], nodeid)
