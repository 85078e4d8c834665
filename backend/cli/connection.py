"""Which Proctor a command talks to."""

from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from backend.cli.output import fail
from backend.settings import get_settings
from backend.supervisor.data_folder import running_at
from proctor import Client


@lru_cache(maxsize=1)
def connect() -> Client:
    """PROCTOR_URL, else the Proctor that runs on the data folder, else the public URL."""
    settings = get_settings()
    running = running_at(settings.data)
    url = settings.url or running or settings.public_url
    token = settings.token.get_secret_value()
    if not token and _is_same(url, running or settings.public_url):
        token = left_token(settings.data)  # the administrator's, for this very Proctor
    if not token:
        fail(
            f"no token for {url}: set PROCTOR_TOKEN, or leave PROCTOR_URL out and set PROCTOR_DATA to the data folder"
            f" of a Proctor that runs on this machine (now {settings.data})"
        )
    return Client(url, token)


def _is_same(url: str, other: str) -> bool:
    """Are these addresses of one server?"""
    return urlsplit(url)[:2] == urlsplit(other)[:2]


def left_token(data: Path) -> str:
    """What `proctor up` left for the commands of its own machine."""
    file = data / "cli-token"
    return file.read_text().strip() if file.exists() else ""
