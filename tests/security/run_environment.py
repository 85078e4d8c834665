"""Serve a small package in an environment made here and print the result: a program for `test_rings.py`.

Reads JSON from standard input: the `package`, `files` of the environment's site-packages by path, `home_files` next to
it, whether it `stands_alone`, and `resources`. Prints `log` (of the interpreter and of the server), `error` and
`places`. Does not import pytest, to start sooner.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import content_hash, pack
from backend.domain.errors import SandboxError
from backend.settings import get_settings
from proctor_sandbox.memory import descendants
from workers.commands import resident_bytes, used_bytes
from workers.environments.packages import PackageStore
from workers.environments.servers import start_server
from workers.environments.zygotes import Zygote, site_packages_of


async def _serve(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    runtime_python = get_settings().runtime_python
    runtime = site_packages_of(runtime_python)
    home = folder / "environments" / "hostile"
    own = home / runtime.relative_to(runtime.parents[2])
    for path, text in request["files"].items():
        _write(own / path, text)
    for path, text in request.get("home_files", {}).items():
        _write(home / path, text)
        (home / path).chmod(0o755)
    own.mkdir(parents=True, exist_ok=True)
    seen = [own] if request.get("stands_alone") else [own, runtime]
    package = PackageStore(folder / "packages").put(content_hash(request["package"]), pack(request["package"]))
    zygote = Zygote(runtime_python, seen, is_jailed=True, new_root=folder / "root", uid=61_234)
    result: dict[str, Any] = {"error": "", "log": ""}
    server = None
    try:
        await zygote.start()
        resources = ResourcesSpec(**{"memory_mb": 256, "sessions": 4, **request.get("resources", {})})
        server = await start_server(zygote, package, resources, folder / "run", 30)
        await asyncio.sleep(request.get("seconds", 0.2))
        server.end_if_too_big()
        pids = descendants(server.process.pid)
        result["resident"], result["memory"] = sum(map(resident_bytes, pids)), used_bytes(pids)
        await asyncio.sleep(0.2)
        result["is_alive"] = server.is_alive
    except SandboxError as error:
        result["error"] = str(error)
    finally:
        result["log"] = zygote.log.last_lines() if zygote.log else ""
        if server is not None:
            result["log"] += "\n" + server.log.last_lines()
            await server.stop()
        await zygote.stop()
    return result


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="pr-") as name:
        told = asyncio.run(_serve(json.load(sys.stdin), Path(name)))
    sys.stdout.write(json.dumps(told) + "\n")
