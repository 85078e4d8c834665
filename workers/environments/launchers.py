"""How foreign code runs on this machine. The machine's capabilities are tested, not guessed, when the host starts."""

import asyncio
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from backend.domain.errors import SandboxError
from workers.environments.containers import Engine
from workers.environments.zygotes import command, site_packages_of

PROBE_SECONDS = 30.0
_UID = 60_999


class Launcher(StrEnum):
    JAIL = "jail"
    """Namespaces, seccomp, limits; see `inside/jail.py`."""
    DOCKER = "docker"
    """A container per server; see `containers.py`."""
    REMOTE = "remote"
    """Run nothing; only connect to external servers."""
    PROCESS = "process"
    """No isolation at all."""
    NONE = "none"
    """Foreign code is refused."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The machine's capabilities and their consequences."""

    launcher: Launcher
    probe: dict[str, Any]
    """`jail`: does it hold here; `reason`: why not; `checks`: what was tried inside and how it ended."""

    @property
    def refusal(self) -> str:
        if self.launcher is Launcher.REMOTE:
            return "this env host only reaches servers that somebody else runs (`resources: {remote: …}`)"
        if wanted := self.probe.get("wanted"):
            return f"environment code is refused: the {wanted} launcher was asked for, but {self.probe['reason']}"
        return (
            f"this machine offers no sandbox ({self.probe.get('reason', 'unknown')}), so environment code is refused; "
            "an administrator may allow it to run without one (PROCTOR_ALLOW_UNSANDBOXED=true)"
        )


async def make_offer(
    runtime_python: Path,
    folder: Path,
    *,
    allow_unsandboxed: bool,
    wanted: str = "",
    engine: Engine | None = None,
) -> Offer:
    """`wanted` is a launcher's name or empty for the best one. Never degrades silently."""
    if wanted == Launcher.REMOTE:
        return Offer(Launcher.REMOTE, {"jail": False, "reason": "not looked at"})
    if wanted == Launcher.DOCKER:
        reason = await engine.reason_against() if engine else "there is no engine"
        probe = {"jail": False, "wanted": wanted, "reason": reason}
        return Offer(Launcher.NONE if reason else Launcher.DOCKER, probe)
    probe = await _probe(runtime_python, folder)
    if wanted == Launcher.PROCESS and allow_unsandboxed:
        return Offer(Launcher.PROCESS, probe)
    if wanted in {"", Launcher.JAIL} and probe["jail"]:
        return Offer(Launcher.JAIL, probe)
    if wanted == "" and allow_unsandboxed:
        return Offer(Launcher.PROCESS, probe)
    if wanted == Launcher.PROCESS:
        probe = {**probe, "reason": "the process launcher was asked for but is not allowed"}
    return Offer(Launcher.NONE, probe)


async def _probe(runtime_python: Path, folder: Path) -> dict[str, Any]:
    """Make a whole jail around a small script that tries to get out."""
    if not runtime_python.exists():
        return {"jail": False, "reason": "the environment runtime is missing: run `make setup`"}
    new_root = folder / "root"
    new_root.mkdir(parents=True, exist_ok=True)
    try:
        ring = {"new_root": str(new_root), "site_packages": [str(site_packages_of(runtime_python))], "uid": _UID}
    except SandboxError as error:
        return {"jail": False, "reason": str(error)}
    process = await asyncio.create_subprocess_exec(
        *command(runtime_python.absolute(), ring, "probe", __file__),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={},
    )
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            output, errors = await process.communicate()
        checks = json.loads(output)
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"jail": False, "reason": f"making a jail took longer than {PROBE_SECONDS:g} s"}
    except json.JSONDecodeError:
        lines = errors.decode(errors="replace").strip().splitlines()
        return {"jail": False, "reason": lines[-1] if lines else "the jail could not be made"}
    broken = [name for name, is_held in checks.items() if not is_held]
    return {"jail": not broken, "reason": f"the jail leaks: {', '.join(broken)}" if broken else "", "checks": checks}
