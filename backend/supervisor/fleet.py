"""The processes of one installation: their commands, environments, logs and when each is ready."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from backend.core.embedded import Postgres, Valkey, accepts_connections, die_with_parent
from backend.settings import LOOPBACK_HOSTS, Settings
from backend.supervisor.children import Child, spawn
from backend.supervisor.data_folder import CannotStart, DataFolder
from backend.supervisor.pulse import TIMEOUT_SECONDS, Pulse, UnixConnection, answers_http, touched_within

_HANDED_ON = re.compile(
    r"PATH|LANG|LC_\w+|TZ|TMPDIR|HOME|USER|LOGNAME|VIRTUAL_ENV|LD_LIBRARY_PATH|(?i:https?_proxy|no_proxy|all_proxy)|"
    r"SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(PIP|UV|DOCKER)_\w+|PYTHON(PATH|UNBUFFERED|HASHSEED)|"
    r"OMP_NUM_THREADS"
)
"""Environment variables passed to the env host, where foreign code runs. None holds a secret of this installation."""
_NOT_HANDED_ON = {
    *("database_url", "redis_url", "artifacts_url", "secret_key", "token"),
    *("url", "public_url", "secure_cookies", "trusted_proxies"),
}
"""Settings that the env host does not need."""
_ENV_HOST_HUNG_SECONDS = 60.0
_WORKER_HUNG_SECONDS = 120.0
_HOUSEKEEPING_HUNG_SECONDS = 600.0
"""One round may delete a lot, or wait for a database that is away."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def url(self) -> str:
        shown = "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}"

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return http.client.HTTPConnection(host, self.port, timeout=timeout)

    def answers(self) -> bool:
        """Does the web reach its database?"""
        connection = self.connection(timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Fleet:
    """Builds the children; the supervisor starts and watches them."""

    def __init__(self, folder: DataFolder, settings: Settings, address: Address) -> None:
        self.folder, self.settings, self.address = folder, settings, address
        _refuse_unencrypted_sign_in(settings, address)
        self.postgres = None if settings.database_url else self._postgres()
        self.valkey = None if settings.redis_url else self._valkey()
        if self.postgres:
            self.postgres.has_cluster()  # refuses a folder that must not be touched, before anything is written
        self.environment = self._environment(settings)

    def servers(self) -> list[Child]:
        """Embedded Valkey and Postgres, unless others are used. Valkey first: Postgres may take a second to create."""
        named = (("broker", self.valkey), ("database", self.postgres))
        return [
            Child(name, partial(server.launch, self.folder.lock), server.log, server.is_ready, server.stop_signal)
            for name, server in named
            if server
        ]

    def api(self, is_migrated: Callable[[], bool]) -> Child:
        """Not ready before the tables are."""
        command = [
            "backend.web.server",
            *("--host", self.address.host, "--port", str(self.address.port)),
        ]
        child = self._child("web", "api", command, lambda: is_migrated() and self.address.answers())
        child.pulse = Pulse(lambda: answers_http(lambda: self.address.connection(TIMEOUT_SECONDS), "/livez"))
        return child

    def waves(self) -> list[list[Child]]:
        """What starts once the web answers, turn by turn: two cores import two things. Training gives way to pages."""
        return [
            [self._worker("cpu", concurrency=max(2, len(os.sched_getaffinity(0))))],
            [
                self._worker("gpu", concurrency=1, niceness=5),
                self._housekeeping(),
            ],
        ]

    def env_host(self) -> Child:
        """Runs as a dedicated user if we are root, except with the docker launcher, which needs the engine."""
        socket = self.folder.sockets / "envhost.sock"
        uses_dedicated_user = os.getuid() == 0 and self.settings.launcher != "docker"
        module = "workers.environments.dedicated_user" if uses_dedicated_user else "workers.environments.host"
        child = self._child(
            *("env host", "envhost", [module], lambda: accepts_connections(socket)),
            environment=self._environment_of_env_host(),
            folder=self.folder.sockets,  # where no `.env` is
        )
        child.pulse = Pulse(lambda: answers_http(lambda: UnixConnection(socket), "/status"), _ENV_HOST_HUNG_SECONDS)
        return child

    def _environment_of_env_host(self) -> dict[str, str]:
        """Only what it needs: its own settings and token, and variables that installers and libraries read."""
        names = self.settings.model_fields_set - _NOT_HANDED_ON
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
        given = {name: value for name, value in self.environment.items() if _HANDED_ON.fullmatch(name)}
        return {**given, **own, "PROCTOR_DATA": str(self.folder.path)}

    def start_preparation(self) -> subprocess.Popen[str]:
        with (self.folder.logs / "preparation.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "backend.supervisor.preparation", "--local"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
                text=True,
            )

    def _worker(self, queue: str, concurrency: int, niceness: int = 0) -> Child:
        command = [
            *("celery", "-A", "workers.tasks.celery_app", "worker", "-Q", queue, "-n", f"{queue}@%h"),
            *("-c", str(concurrency), "--without-gossip", "--without-mingle"),
        ]
        log = self.folder.logs / f"worker-{queue}.log"
        child = self._child(
            f"{queue} worker", log.stem, command, lambda: _says(log, '"worker ready"'), niceness=niceness
        )
        child.pulse = self._heartbeat(queue, _WORKER_HUNG_SECONDS)
        return child

    def _housekeeping(self) -> Child:
        child = self._child("housekeeping", "housekeeping", ["workers.tasks.housekeeping"], lambda: True, niceness=5)
        child.pulse = self._heartbeat("housekeeping", _HOUSEKEEPING_HUNG_SECONDS)
        return child

    def _heartbeat(self, name: str, hung_seconds: float) -> Pulse:
        """Of a process that touches a file in the folder of the sockets."""
        return Pulse(lambda: touched_within(self.folder.sockets / name, hung_seconds), hung_seconds)

    def _child(
        self,
        name: str,
        log_name: str,
        module: list[str],
        is_answering: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        niceness: int = 0,
        folder: Path | None = None,
    ) -> Child:
        log = self.folder.logs / f"{log_name}.log"
        command = [sys.executable, "-m", *module]
        start = partial(spawn, command, environment or self.environment, log, niceness, folder)
        return Child(name, start, log, is_answering)

    def _postgres(self) -> Postgres:
        return Postgres(self.folder.path / "postgres", self.folder.sockets, self.folder.logs / "postgres.log")

    def _valkey(self) -> Valkey:
        return Valkey(self.folder.path / "valkey", self.folder.sockets, self.folder.logs / "valkey.log")

    def _environment(self, settings: Settings) -> dict[str, str]:
        """What this process was given, and where things are."""
        given = dict(os.environ)  # noqa: TID251 - handed on to the children, not read
        own = {
            "PROCTOR_DATA": str(self.folder.path),
            "DATABASE_URL": self.postgres.url() if self.postgres else settings.database_url,
            "REDIS_URL": self.valkey.url if self.valkey else settings.redis_url,
        }
        if "secret_key" not in settings.model_fields_set:
            own["PROCTOR_SECRET_KEY"] = self.folder.secret_key()
        if "public_url" not in settings.model_fields_set:
            own["PROCTOR_PUBLIC_URL"] = self.address.url
        return {**given, **own}


def _refuse_unencrypted_sign_in(settings: Settings, address: Address) -> None:
    """The settings know the public address; only we know on which address we listen."""
    is_exposed = address.host not in LOOPBACK_HOSTS and not settings.has_secure_cookies
    if settings.stage == "production" and is_exposed and settings.secure_cookies is None:
        raise CannotStart(
            f"Listening on {address.host or 'all addresses'} would send passwords and session cookies unencrypted. "
            "Put a TLS proxy in front of Proctor and set PROCTOR_PUBLIC_URL to its https address. "
            "To accept the risk on a network that you trust, set PROCTOR_SECURE_COOKIES=false."
        )


def _says(log: Path, words: str) -> bool:
    """Are these words in the log? Each start of a child begins a log of its own."""
    return log.exists() and words in log.read_text(errors="replace")
