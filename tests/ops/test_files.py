"""Files that are not Python: settings, images, the compose file, the Makefile."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from backend.settings import ALL_FIELDS, PROJECT_ROOT, Settings
from scripts import check_commits, check_files, check_skips


def test_the_example_of_the_settings_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT_ROOT)

    assert check_files.check_env_example()


def test_the_example_of_the_settings_loads_with_every_line_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ALL_FIELDS:
        monkeypatch.delenv(f"PROCTOR_{name.upper()}", raising=False)
    example = (PROJECT_ROOT / ".env.example").read_text()
    lines = [line.removeprefix("#") for line in example.splitlines() if "=" in line]
    (tmp_path / ".env").write_text("\n".join(lines))

    settings = Settings(_env_file=tmp_path / ".env")  # type: ignore[call-arg]

    assert settings.stage == "development"
    assert settings.public_url == "http://127.0.0.1:8000"
    assert not settings.allow_unsandboxed


def test_the_compose_file_holds_no_secret_and_checks_the_health_of_every_service() -> None:
    compose = yaml.safe_load((PROJECT_ROOT / "docker-compose.yml").read_text())

    assert "name" not in compose
    assert set(compose["services"]) == {
        *("postgres", "redis", "api", "worker-cpu", "worker-gpu", "envhost", "housekeeping"),
        *("worker-cuda", "worker-vllm", "worker-unsloth"),
    }
    for name, service in compose["services"].items():
        assert "healthcheck" in service, name
        for variable, value in service["environment"].items() if "environment" in service else ():
            is_secret = any(word in variable for word in ("KEY", "PASSWORD", "TOKEN", "AUTH"))
            assert not is_secret or value.startswith("${"), variable


def test_every_target_of_the_makefile_is_explained() -> None:
    shown = subprocess.run(["make", "help"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True).stdout
    named = {line.split()[0] for line in shown.splitlines() if line.strip()}

    wanted = "help setup demo up test check constraints sbom audit bench lint types migrate migration clean vendor"
    for target in [*wanted.split(" "), "screenshots"]:
        assert target in named


def test_a_commit_outside_the_session_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backend").mkdir()
    (tmp_path / "backend" / "a.py").write_text("def f(session):\n    session.flush()\n")
    assert check_commits.main() == 0

    (tmp_path / "backend" / "b.py").write_text("def f(session):\n    session.commit()\n")

    assert check_commits.main() == 1


RAN = '<testcase classname="tests.browser.test_a" name="a"/>'


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (RAN, 0),
        ('<testcase classname="tests.tasks.test_a" name="a"/>', 1),
        (f'{RAN}<testcase name="b"><skipped message="later"/></testcase>', 1),
        (f'{RAN}<testcase name="b"><skipped message="needs a GPU"/></testcase>', 0),
    ],
)
def test_what_is_skipped_in_ci_is_a_failure(tmp_path: Path, body: str, status: int) -> None:
    (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{body}</testsuite></testsuites>")

    assert check_skips.main([str(tmp_path / "tests.xml")]) == status


def test_what_was_skipped_in_one_report_may_have_run_in_another(tmp_path: Path) -> None:
    reports = []
    for name, body in (("tests", '<skipped message="no module"/>'), ("extras", "")):
        reports.append(str(tmp_path / f"{name}.xml"))
        Path(reports[-1]).write_text(f'<testsuite>{RAN}<testcase classname="c" name="b">{body}</testcase></testsuite>')
    assert check_skips.main(reports[:1]) == 1
    assert check_skips.main(reports) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["backend.app", "workers.tasks.celery_app", "workers.environments.host", "backend.supervisor.up"]
)
def test_a_process_that_should_start_fast_imports_nothing_heavy(module: str) -> None:
    heavy = ("torch", "transformers", "trl", "datasets", "pandas", "numpy", "scipy", "openai")
    program = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PROJECT_ROOT)

    assert done.stdout.strip() == "[]"
