"""Launch files for groups of nodes: they parse, name only settings that exist, and give each node its place."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.settings import ALL_FIELDS, PROJECT_ROOT, Settings

DEPLOY = PROJECT_ROOT / "deploy"
SCRIPTS = [DEPLOY / "node.sh", DEPLOY / "slurm" / "train.sbatch"]
SETTINGS = {f"PROCTOR_{name.upper()}" for name in ALL_FIELDS}


def stub(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_valid(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, script], check=True)


@pytest.mark.parametrize("file", [*SCRIPTS, *DEPLOY.glob("kueue/*.yaml")], ids=lambda path: path.name)
def test_they_name_only_settings_that_exist(file: Path) -> None:
    assert set(re.findall(r"PROCTOR_[A-Z_]+", file.read_text())) <= SETTINGS


def test_slurm_gives_each_node_its_number_and_the_address_of_the_first(tmp_path: Path) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.parent.mkdir()
    stub(programs, "scontrol", 'test "$1 $2 $3" = "show hostnames gpu-[7-8]" && printf "gpu-7\\ngpu-8\\n"')
    stub(programs, "srun", 'shift; for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@"; done')
    told = '"$PROCTOR_NODE_RANK/$PROCTOR_NODES at $PROCTOR_NODES_ADDRESS as $PROCTOR_WORKER_NAME: $*"'
    stub(programs, "python3", f"echo {told}")
    (tmp_path / "deploy").symlink_to(DEPLOY)
    environment = {
        "PATH": os.defpath,
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "gpu-[7-8]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "412345",
    }
    done = subprocess.run(
        ["bash", DEPLOY / "slurm" / "train.sbatch"], env=environment, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("0/2 at gpu-7:22345 as slurm-412345: -m celery -A workers.tasks.celery_app worker -Q gpu")
    assert second == "1/2 at gpu-7:22345 as slurm-412345: -m workers.training.node"


def test_kubernetes_numbers_the_nodes(tmp_path: Path) -> None:
    stub(tmp_path, "python3", 'echo "$PROCTOR_NODE_RANK: $*"')
    environment = {"PATH": f"{tmp_path}:{os.defpath}", "PROCTOR_NODES": "2", "PROCTOR_NODES_ADDRESS": "a:1"}
    environment["JOB_COMPLETION_INDEX"] = "1"
    done = subprocess.run(["bash", DEPLOY / "node.sh"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1: -m workers.training.node\n"


def test_a_node_without_a_number_does_not_start() -> None:
    environment = {"PATH": os.defpath, "PROCTOR_NODES": "2", "PROCTOR_NODES_ADDRESS": "a:1"}
    done = subprocess.run(["bash", DEPLOY / "node.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode
    assert "PROCTOR_NODE_RANK: number of this node" in done.stderr


def test_kueue_admits_as_many_pods_as_there_are_nodes_and_they_find_the_first() -> None:
    service, job = yaml.safe_load_all((DEPLOY / "kueue" / "train.yaml").read_text())
    queues = {each["metadata"]["name"] for each in yaml.safe_load_all((DEPLOY / "kueue" / "queue.yaml").read_text())}
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables: dict[str, Any] = {each["name"]: each.get("value") for each in container["env"]}
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] in queues
    assert spec["suspend"], "kueue starts it"
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(variables["PROCTOR_NODES"])
    name, port = job["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert variables["PROCTOR_NODES_ADDRESS"] == f"{name}-0.{pod['subdomain']}:{port}"
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert (PROJECT_ROOT / container["command"][0].removeprefix("/app/")).stat().st_mode & 0o111
    settings = {name.removeprefix("PROCTOR_").lower(): value for name, value in variables.items() if value}
    assert Settings(_env_file=None, nodes=settings["nodes"], nodes_address=settings["nodes_address"]).nodes == 2  # type: ignore[call-arg, arg-type]
