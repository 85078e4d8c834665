"""The processes of one installation: commands, environments, logs and readiness checks."""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from pydantic import SecretStr

from backend.core.embedded import CannotStart, Postgres, Valkey, accepts_connections
from backend.settings import LOOPBACK_HOSTS, Settings
from backend.supervisor.children import (
    NOT_ALIVE,
    Child,
    LivenessProbe,
    Process,
    http_status,
    spawn,
)
from backend.supervisor.data_folder import DataFolder
from backend.supervisor.fork_server import ForkServer

_PASSED_VARIABLES = re.compile(
    r"PATH|LANG|LC_\w+|TZ|TMPDIR|HOME|USER|LOGNAME|VIRTUAL_ENV|LD_LIBRARY_PATH|(?i:https?_proxy|no_proxy|all_proxy)|"
    r"SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(PIP|UV|DOCKER)_\w+|PYTHON(PATH|UNBUFFERED|HASHSEED)|"
    r"OMP_NUM_THREADS"
)
"""Environment variables passed to the env host, where foreign code runs. None holds a secret of this installation."""
_WITHHELD_SETTINGS = {
    *("database_url", "redis_url", "artifacts_url", "secret_key", "public_url", "secure_cookies", "trusted_proxies"),
}
"""Settings that the env host does not get."""
_SHARED_MODULES = ("workers.tasks.celery_app", "backend.supervisor.preparation")
"""Imported once for the web, the preparation, the workers and housekeeping. The web needs almost all of it."""
_ENV_HOST_PATIENCE = 2
_WORKER_PATIENCE = 4
_HOUSEKEEPING_PATIENCE = 20
"""Multiples of `hung_seconds`. A round of housekeeping may delete a lot, or wait for an unreachable database."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def url(self) -> str:
        shown = "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}"


class Fleet:
    """Builds the children. The supervisor starts and watches them."""

    def __init__(self, folder: DataFolder, settings: Settings, address: Address) -> None:
        self.folder, self.settings, self.address = folder, settings, address
        is_exposed = address.host not in LOOPBACK_HOSTS and not settings.has_secure_cookies
        if settings.stage == "production" and is_exposed and settings.secure_cookies is None:
            raise CannotStart(
                f"Listening on {address.host or 'all addresses'} would send passwords and session cookies unencrypted. "
                "Put a TLS proxy in front of Proctor and set PROCTOR_PUBLIC_URL to its https address. "
                "To accept the risk on a network that you trust, set PROCTOR_SECURE_COOKIES=false."
            )
        self.postgres = self.valkey = None
        if not settings.database_url:
            self.postgres = Postgres(folder.path / "postgres", folder.sockets, folder.logs / "postgres.log")
            self.postgres.has_cluster()  # refuses a folder that must not be touched, before anything is written
        if not settings.redis_url:
            self.valkey = Valkey(folder.path / "valkey", folder.sockets, folder.logs / "valkey.log")
        own = {
            "PROCTOR_DATA": str(folder.path),
            "DATABASE_URL": self.postgres.url() if self.postgres else settings.database_url,
            "REDIS_URL": self.valkey.url if self.valkey else settings.redis_url,
        }
        if "secret_key" not in settings.model_fields_set:
            own["PROCTOR_SECRET_KEY"] = folder.secret_key()
        if "public_url" not in settings.model_fields_set:
            own["PROCTOR_PUBLIC_URL"] = address.url
        self.environment = {**os.environ, **own}  # noqa: TID251 - passed on to the children, not read
        self.fork_server = ForkServer(_SHARED_MODULES, self.environment, folder.logs / "fork-server.log")

    def api(self, is_migrated: Callable[[], bool]) -> Child:
        """Build the web process. It is ready only after the migration, when it reaches its database."""
        host, port = self.address.host, self.address.port
        command = ["backend.web.server", "--host", host, "--port", str(port)]
        server = ("127.0.0.1" if host == "0.0.0.0" else host, port)
        child = self._child(
            *("web", "api", command, lambda: is_migrated() and http_status(server, "/healthz", 2) == 200)
        )
        child.probe = LivenessProbe(lambda: http_status(server, "/livez") not in NOT_ALIVE, self.settings.hung_seconds)
        return child

    def waves(self) -> list[list[Child]]:
        """Build what starts after the web, in groups, because imports keep the cores busy. Training yields to pages."""
        command = ["workers.tasks.housekeeping"]
        housekeeping = self._child("housekeeping", "housekeeping", command, lambda: True, niceness=5)
        housekeeping.probe = self._heartbeat("housekeeping", _HOUSEKEEPING_PATIENCE)
        return [
            [self._worker("cpu", concurrency=max(2, len(os.sched_getaffinity(0))))],
            [self._worker("gpu", concurrency=1, niceness=5), housekeeping],
        ]

    def env_host(self) -> Child:
        """Build the env host. Root runs it as a dedicated user, unless the docker launcher needs the engine.

        It is not forked, so that its memory holds nothing of the others. It gets only its own settings and token, and
        variables that installers and libraries read.
        """
        socket = self.folder.sockets / "envhost.sock"
        uses_dedicated_user = os.getuid() == 0 and self.settings.launcher != "docker"
        module = "workers.environments.dedicated_user" if uses_dedicated_user else "workers.environments.host"
        names = self.settings.model_fields_set - _WITHHELD_SETTINGS
        public = {name for name in names if not isinstance(getattr(self.settings, name), SecretStr)}
        values = self.settings.model_dump(mode="json", include=public)
        if "envhost_token" in names:
            values["envhost_token"] = self.settings.envhost_token.get_secret_value()
        if "runtime_python" in values:
            values["runtime_python"] = str(self.settings.runtime_python.absolute())
        own = {
            f"PROCTOR_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
            if value is not None
        }
        given = {name: value for name, value in self.environment.items() if _PASSED_VARIABLES.fullmatch(name)}
        environment = {**given, **own, "PROCTOR_DATA": str(self.folder.path)}
        command, log = [sys.executable, "-m", "workers.begin", module], self.folder.logs / "envhost.log"
        start = partial(spawn, command, environment, log, folder=self.folder.sockets)  # a folder without `.env`
        child = Child("env host", start, log, lambda: accepts_connections(socket))
        child.probe = LivenessProbe(
            lambda: http_status(socket, "/status") not in NOT_ALIVE, _ENV_HOST_PATIENCE * self.settings.hung_seconds
        )
        return child

    def start_preparation(self) -> tuple[Process, TextIO]:
        """Return the process and its messages, a line of JSON each."""
        log = self.folder.logs / "preparation.log"
        log.unlink(missing_ok=True)
        readable, writable = os.pipe()
        command = ["backend.supervisor.preparation", "--local"]
        process = self.fork_server.fork(command, log, output=writable)
        os.close(writable)
        return process, open(readable)

    def _worker(self, queue: str, concurrency: int, niceness: int = 0) -> Child:
        command = [
            *("workers.tasks.celery_app", "-Q", queue, "-n", f"{queue}@%h"),
            *("-c", str(concurrency), "--without-gossip", "--without-mingle"),
        ]
        log = self.folder.logs / f"worker-{queue}.log"
        child = self._child(
            *(f"{queue} worker", log.stem, command),
            lambda: log.exists() and '"worker ready"' in log.read_text(errors="replace"),  # each start has a new log
            niceness=niceness,
        )
        child.probe = self._heartbeat(queue, _WORKER_PATIENCE)
        return child

    def _heartbeat(self, name: str, patience: int) -> LivenessProbe:
        """Probe a process that touches a file in the folder of the sockets."""
        file, hung_seconds = self.folder.sockets / name, patience * self.settings.hung_seconds
        return LivenessProbe(lambda: time.time() - file.stat().st_mtime < hung_seconds, hung_seconds)

    def _child(
        self, name: str, log_name: str, command: list[str], is_answering: Callable[[], bool], niceness: int = 0
    ) -> Child:
        """Build a child that shares imports with the others."""
        log = self.folder.logs / f"{log_name}.log"
        return Child(name, partial(self.fork_server.fork, command, log, niceness), log, is_answering)
