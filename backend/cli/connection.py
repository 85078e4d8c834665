"""Which Proctor a command talks to."""

from functools import lru_cache
from pathlib import Path

from backend.cli.output import fail
from backend.client import Client
from backend.settings import get_settings
from backend.supervisor.data_folder import running_at


@lru_cache(maxsize=1)
def connect() -> Client:
    """PROCTOR_URL, else the Proctor that runs on the data folder, else the public URL."""
    settings = get_settings()
    url = settings.url or running_at(settings.data) or settings.public_url
    token = settings.token.get_secret_value() or left_token(settings.data)
    if not token:
        fail(f"no token: set PROCTOR_TOKEN, or PROCTOR_DATA to a local data folder ({settings.data} has none)")
    return Client(url, token)


def left_token(data: Path) -> str:
    """What `proctor up` left for the commands of its own machine."""
    file = data / "cli-token"
    return file.read_text().strip() if file.exists() else ""
