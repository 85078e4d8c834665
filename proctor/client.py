"""Requests to a Proctor server: errors, pages of lists, waiting for jobs, files and tables."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from proctor.api import Operations
from proctor.namespace import Json as Json

if TYPE_CHECKING:
    import httpx
    import pandas
    import pyarrow

    from proctor.base import Job

J = TypeVar("J", bound="Job")

TIMEOUT_SECONDS = 60.0
UPLOAD_SECONDS = 600.0
POLL_SECONDS = 0.5


class ProctorError(RuntimeError):
    """The server refused a request, or could not be reached. The message explains why and what to do."""

    def __init__(self, message: str, status: int = 0, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 if the server could not be reached."""
        self.fields = dict(fields or {})
        """Error messages by field."""


class Client(Operations):
    """A connection to one Proctor server.

    `url` and `token` default to the environment variables PROCTOR_URL and PROCTOR_TOKEN. Create a token on the
    *Account* page. Use the client as a context manager, or call `close()`.

    Raises ProctorError if a request fails.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        import httpx  # here, so that programs start faster

        self.url = (url or os.environ.get("PROCTOR_URL") or "http://127.0.0.1:8000").rstrip("/")  # noqa: TID251
        secret = token or os.environ.get("PROCTOR_TOKEN")  # noqa: TID251
        if not secret:
            raise ProctorError("No API token. Set PROCTOR_TOKEN, or pass token=… (create one on the Account page).")
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {secret}"}, timeout=TIMEOUT_SECONDS
        )
        super().__init__(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def request(
        self, method: str, path: str, *, query: Mapping[str, object] | None = None, body: object = None
    ) -> Json:
        """Send a request to `/api/v1{path}` and return the parsed JSON; None if the response is empty."""
        import httpx

        try:
            response = self._http.request(method, path, params=_parameters(query or {}), json=body)
        except httpx.TransportError as error:
            raise ProctorError(f"No Proctor server answers at {self.url} ({error}).") from error
        return self._read(response)

    def get(self, path: str, /, **query: object) -> Json:
        return self.request("GET", path, query=query)

    def post(self, path: str, body: object = None) -> Json:
        return self.request("POST", path, body={} if body is None else body)

    def put(self, path: str, body: object) -> Json:
        return self.request("PUT", path, body=body)

    def delete(self, path: str) -> None:
        self.request("DELETE", path)

    def find(self, path: str) -> Json | None:
        """Like `get`, but None if there is nothing at the address."""
        try:
            return self.request("GET", path)
        except ProctorError as error:
            if error.status == 404:
                return None
            raise

    def pages(self, path: str, /, *, limit: int | None = None, **query: object) -> Iterator[dict[str, Json]]:
        """Yield the items of a list, at most `limit`, and request further pages when they are needed."""
        after, remaining = None, limit
        while remaining is None or remaining > 0:
            page = self.request("GET", path, query={**query, "after": after})
            yield from page["items"][:remaining]
            after = page["next"]
            if after is None:
                return
            if remaining is not None:
                remaining -= len(page["items"])

    def wait(self, job: J, *, timeout: float | None = None, progress: bool = True) -> J:
        """Wait for a job with a progress bar (also in notebooks) and return its final state.

        Raises TimeoutError after `timeout` seconds; the job continues on the server.
        """
        poll_path = job.poll_path
        deadline = None if timeout is None else time.monotonic() + timeout
        with _progress_bar(progress) as update:
            while not job.is_finished:
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"Not finished after {timeout:g} s: {job.message or 'still running'}")
                time.sleep(POLL_SECONDS)
                job = type(job).model_validate(self.request("GET", poll_path)).polled_at(poll_path)
                update(job.done, job.total, job.message)
        return job

    def download(self, path: str, target: Path | str | None = None, /, **query: object) -> Path:
        """Download a file and return its path. An interrupted download leaves no file.

        `target` is a file or a folder. Default: the server's name for the file, in the current folder.
        """
        import httpx

        try:
            with self._http.stream("GET", path, params=_parameters(query)) as response:
                if not response.is_success:
                    response.read()
                    self._read(response)
                file = Path(target or ".")
                if file.is_dir():
                    file /= _file_name(response.headers.get("content-disposition", ""))
                partial = file.with_name(file.name + ".partial")
                try:
                    with partial.open("wb") as opened:
                        for part in response.iter_bytes():
                            opened.write(part)
                    return partial.rename(file)
                finally:
                    partial.unlink(missing_ok=True)
        except httpx.TransportError as error:
            raise ProctorError(f"The connection to {self.url} broke during the download: {error}") from error

    def upload(self, path: str, files: Mapping[str, Path | str], fields: Mapping[str, object]) -> Json:
        """Send files by field name together with other form fields; return the parsed JSON."""
        import httpx

        with ExitStack() as stack:
            opened = {
                name: (Path(file).name, stack.enter_context(Path(file).open("rb"))) for name, file in files.items()
            }
            try:
                response = self._http.post(path, files=opened, data=_parameters(fields), timeout=UPLOAD_SECONDS)
            except httpx.TransportError as error:
                raise ProctorError(f"No Proctor server answers at {self.url} ({error}).") from error
        return self._read(response)

    def table(self, run: object, *, where: str = "") -> pyarrow.Table:
        """Return a run's rollouts as an Arrow table, one row per rollout; needs `pyarrow`.

        `run` is a run's id or name, or a run; `where` is a filter such as `reward > 0 and has flag`.
        """
        import pyarrow.parquet

        name = quote(str(getattr(run, "id", run)), safe="")
        with tempfile.TemporaryDirectory() as folder:
            file = self.download(f"/runs/{name}/export", folder, format="parquet", where=where)
            return pyarrow.parquet.read_table(file)

    def dataframe(self, run: object, *, where: str = "") -> pandas.DataFrame:
        """Return a run's rollouts as a pandas DataFrame; needs `pandas` and `pyarrow`. See `table`."""
        return self.table(run, where=where).to_pandas()

    def _read(self, response: httpx.Response) -> Json:
        if response.is_redirect:  # never followed: the token is only for this address
            location = response.headers.get("location", "")
            raise ProctorError(
                f"{self.url} redirects to {location}. Set PROCTOR_URL to that address.", response.status_code
            )
        if not response.is_error:
            return response.json() if response.content else None
        try:
            problem = response.json()
            fields: dict[str, str] = problem.get("fields") or {}
            message = "\n".join([str(problem["detail"]), *(f"  {name}: {text}" for name, text in fields.items())])
        except (ValueError, KeyError, TypeError, AttributeError):
            message, fields = f"{response.request.method} {response.request.url} returned {response.status_code}.", {}
        raise ProctorError(message, response.status_code, fields)


@contextmanager
def _progress_bar(is_shown: bool) -> Iterator[Callable[[int, int | None, str], None]]:
    from rich.progress import Progress

    with Progress(*Progress.get_default_columns(), disable=not is_shown) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, message: bar.update(task, completed=done, total=total, description=message)


def _file_name(disposition: str) -> str:
    """Return the server's name for a file, without any folder."""
    _, _, name = disposition.partition('filename="')
    return Path(name.partition('"')[0]).name or "download"


def _parameters(values: Mapping[str, object]) -> dict[str, str | list[str]]:
    """Return query parameters without None. Lists are repeated."""
    return {
        name: [str(each) for each in value] if isinstance(value, list) else str(value)
        for name, value in values.items()
        if value is not None
    }
