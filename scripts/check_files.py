"""Check the files that are not Python: Dockerfiles with hadolint, the compose file, `.ci/run` and `.env.example`."""

import shutil
import subprocess
import sys
from pathlib import Path

from backend.settings import ALL_FIELDS

BIN = Path(sys.executable).parent
EXAMPLE = {
    "POSTGRES_PASSWORD": "example",
    "VALKEY_PASSWORD": "example",
    "PROCTOR_SECRET_KEY": "example",
    "PROCTOR_ENVHOST_TOKEN": "example",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
"""Variables that the compose file requires; it has no secrets itself."""


def main(arguments: list[str]) -> int:
    is_strict = "--strict" in arguments
    results = [
        run([str(BIN / "hadolint"), "Dockerfile.api", "Dockerfile.worker"]),
        run(["bash", "-n", ".ci/run"]),
        check_compose(is_strict),
        check_env_example(),
    ]
    return 0 if all(results) else 1


def check_compose(is_strict: bool) -> bool:
    for program in (["docker-compose"], ["docker", "compose"]):
        if shutil.which(program[0]):
            return run([*program, "-f", "docker-compose.yml", "config", "--quiet"], EXAMPLE)
    sys.stdout.write("docker-compose is not installed: docker-compose.yml was not checked\n")
    return not is_strict


def check_env_example() -> bool:
    """Every setting is in `.env.example`, and nothing else is."""
    lines = Path(".env.example").read_text().splitlines()
    named = {line.lstrip("# ").split("=")[0] for line in lines if "=" in line}
    plain = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}
    wanted = {plain.get(name, f"PROCTOR_{name.upper()}") for name in ALL_FIELDS}
    for name in sorted(wanted ^ named):
        sys.stdout.write(f".env.example: {name} is {'missing' if name in wanted else 'not a setting'}\n")
    return wanted == named


def run(command: list[str], environment: dict[str, str] | None = None) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.stdout.write(f"{' '.join(command)}\n{done.stdout}{done.stderr}\n")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
