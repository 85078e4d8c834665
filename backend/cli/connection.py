"""The Proctor server that commands talk to."""

from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from backend.cli.output import fail
from backend.settings import ConnectionSettings, get_settings
from backend.supervisor.data_folder import running_at
from proctor import Client


@lru_cache(maxsize=1)
def connect() -> Client:
    """Connect to PROCTOR_URL, else to the Proctor that runs on the data folder, else to the public URL."""
    settings, connection = get_settings(), ConnectionSettings()
    running = running_at(settings.data)
    url = connection.url or running or settings.public_url
    token = connection.token.get_secret_value()
    if not token and urlsplit(url)[:2] == urlsplit(running or settings.public_url)[:2]:
        token = left_token(settings.data)  # the administrator's token for this very server
    if not token:
        fail(
            f"no token for {url}: set PROCTOR_TOKEN, or unset PROCTOR_URL and set PROCTOR_DATA to the data folder"
            f" of a Proctor that runs on this machine (now {settings.data})"
        )
    return Client(url, token)


def left_token(data: Path) -> str:
    """Return the token that `proctor up` left for commands on its own machine; empty if there is none."""
    file = data / "cli-token"
    return file.read_text().strip() if file.exists() else ""
