"""Settings of an installation, read once from the environment and `.env`. Product limits are not settings."""

import re
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from backend.domain.addresses import read_allowed_hosts

PROJECT_ROOT = Path(__file__).resolve().parent.parent
_DEVELOPMENT_KEY = "development-only-secret-key"
_PLACEHOLDERS = {_DEVELOPMENT_KEY, "example", "password", "changeme", "change-me", "secret", "proctor", "postgres"}
MIN_SECRET_LENGTH = 16
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


_SOURCE = SettingsConfigDict(env_prefix="PROCTOR_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True)


class Settings(BaseSettings):
    """Environment variables with the prefix `PROCTOR_`, and the conventional `DATABASE_URL` and `REDIS_URL`."""

    model_config = _SOURCE

    # files
    stage: Literal["development", "test", "production"] = "development"
    """`production` refuses guessable secrets, unencrypted sign-in and private addresses of users."""
    data: Path = PROJECT_ROOT / "data"
    """Folder of everything that Proctor stores outside Postgres, and of its own Postgres and Redis."""
    artifacts_url: str = ""
    """An fsspec URL. Default: `artifacts/` in the data folder."""
    runtime_python: Path = PROJECT_ROOT / ".runtime" / "bin" / "python"
    """Interpreter of the shared environment runtime, which has `openenv`."""

    # servers
    database_url: str = Field(default="", validation_alias=AliasChoices("DATABASE_URL", "PROCTOR_DATABASE_URL"))
    """Address of Postgres. Default: a Postgres in the data folder, which `proctor up` starts."""
    redis_url: str = Field(default="", validation_alias=AliasChoices("REDIS_URL", "PROCTOR_REDIS_URL"))
    """Address of Redis. Default: a Redis in the data folder, which `proctor up` starts."""
    envhost_url: str = ""
    """`unix:/path` or `http://host:port`. Default: the socket in the data folder."""
    envhost_token: SecretStr = SecretStr("")
    """Required from workers that reach the env host over the network."""

    # the web
    public_url: str = "http://127.0.0.1:8000"
    """Address at which people reach Proctor. It appears in links, invitations and notifications."""
    secret_key: SecretStr = SecretStr(_DEVELOPMENT_KEY)
    """Encrypts stored secrets. `proctor up` creates one in the data folder."""
    secure_cookies: bool | None = None
    """Send cookies only over HTTPS, and HSTS. Default: whether `public_url` is an https address."""
    trusted_proxies: str = "127.0.0.1"
    """Addresses and networks, separated by commas, whose X-Forwarded-For and X-Forwarded-Proto headers count."""
    allow_private_endpoints: bool | None = None
    """Whether users' addresses (endpoints, webhooks, mail servers, repositories, remote environments) may be on this
    machine or in private networks. Default: not in production."""
    allowed_private_hosts: str = ""
    """Private addresses that are always allowed: comma-separated hosts, host:port, IP addresses or networks."""

    # workers
    allow_unsandboxed: bool = False
    """Run foreign environment code without a sandbox."""
    launcher: Literal["", "jail", "docker", "remote", "process"] = ""
    """How the env host runs foreign code. Default: the safest launcher that this machine supports."""
    docker_runtime: str = ""
    """Runtime of the docker launcher, such as `runsc`. Default: the engine's."""
    allow_network: str = ""
    """Comma-separated content hashes that need no grant, or `none` to refuse all. Default: administrators' grants."""
    environments_gb: float = Field(default=20.0, gt=0)
    """Disk limit of packages' virtual environments on the env host. The least used are deleted first."""
    nodes: int = Field(default=1, ge=1, le=64)
    """Number of machines that can train one run together."""
    node_rank: int = Field(default=0, ge=0)
    """Number of this machine among them. Machine 0 runs the worker; the others run `workers.training.node`."""
    nodes_address: str = ""
    """`host:port` of machine 0, where its training processes listen for those of the others."""
    worker_name: str = ""
    """Name of the worker on the page **Workers**. Default: the host's name."""
    hung_seconds: float = Field(default=30.0, ge=5)
    """`proctor up` restarts the web after this time without a response. The env host gets twice this time, workers
    four times, housekeeping twenty times."""
    gguf_converter: Path | None = None
    """llama.cpp's `convert_hf_to_gguf.py`. Default: next to this interpreter or on the path."""

    @field_validator("allowed_private_hosts")
    @classmethod
    def _is_allow_list(cls, value: str) -> str:
        read_allowed_hosts(value)
        return value

    @model_validator(mode="after")
    def _has_place_among_nodes(self) -> "Settings":
        if self.node_rank >= self.nodes:
            raise ValueError(f"PROCTOR_NODE_RANK={self.node_rank} must be below PROCTOR_NODES={self.nodes}")
        if self.nodes > 1 and not re.fullmatch(r"[\w.:\[\]-]+:\d{1,5}", self.nodes_address):
            raise ValueError("PROCTOR_NODES_ADDRESS must be host:port of machine 0, such as node-0:29500")
        return self

    @model_validator(mode="after")
    def _is_safe_in_production(self) -> "Settings":
        """Refuse guessable secrets, and unencrypted sign-in."""
        if self.stage != "production":
            return self
        key = self.secret_key.get_secret_value()
        token = self.envhost_token.get_secret_value()
        guessable = {
            "PROCTOR_SECRET_KEY": key in _PLACEHOLDERS or len(key) < MIN_SECRET_LENGTH,
            "PROCTOR_ENVHOST_TOKEN": bool(token) and (token in _PLACEHOLDERS or len(token) < MIN_SECRET_LENGTH),
            "The password in DATABASE_URL": (urlsplit(self.database_url).password or "") in _PLACEHOLDERS,
            "The password in REDIS_URL": (urlsplit(self.redis_url).password or "") in _PLACEHOLDERS,
        }
        for name, is_guessable in guessable.items():
            if is_guessable:
                raise ValueError(
                    f"{name} must be set in production to at least {MIN_SECRET_LENGTH} random characters, "
                    f"for example {secrets.token_urlsafe(32)}"
                )
        parts = urlsplit(self.public_url)
        is_exposed = parts.scheme != "https" and parts.hostname not in LOOPBACK_HOSTS
        if is_exposed and self.secure_cookies is None:
            raise ValueError(
                f"PROCTOR_PUBLIC_URL is {self.public_url}: passwords and session cookies would cross the network "
                "unencrypted. Put a TLS proxy in front of Proctor and set PROCTOR_PUBLIC_URL to its https address. "
                "To accept the risk on a network that you trust, set PROCTOR_SECURE_COOKIES=false."
            )
        return self

    @property
    def has_secure_cookies(self) -> bool:
        if self.secure_cookies is None:
            return urlsplit(self.public_url).scheme == "https"
        return self.secure_cookies

    @property
    def private_endpoints_allowed(self) -> bool:
        if self.allow_private_endpoints is None:
            return self.stage != "production"
        return self.allow_private_endpoints

    @property
    def run_folder(self) -> Path:
        """Sockets and pid files."""
        return self.data / "run"

    @property
    def envhost_address(self) -> str:
        return self.envhost_url or f"unix:{self.run_folder / 'envhost.sock'}"

    @property
    def artifacts_address(self) -> str:
        return self.artifacts_url or str(self.data / "artifacts")


class ConnectionSettings(BaseSettings):
    """Which installation the command line talks to. Read from the same places."""

    model_config = _SOURCE

    url: str = ""
    """Server that `proctor` talks to. Default: `public_url`."""
    token: SecretStr = SecretStr("")
    """API token of the command line. Default: the token that `proctor up` left in the data folder."""


ALL_FIELDS = {**Settings.model_fields, **ConnectionSettings.model_fields}
"""Every variable that can be set, in the order of the documentation."""


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    return Settings()
