"""What `proctor judge …` and `proctor question …` have in common: finding one, watching its work on a run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.names import run_of, short
from backend.cli.output import BAD_RESULT, fail, say, write_fields, write_json
from backend.cli.watching import OVER, POLL_SECONDS, look_while, work_bar
from proctor import Client

Where = Annotated[str, typer.Option(help="Only rollouts that pass this filter, e.g. `reward > 0 and level = 2`.")]


@dataclass(frozen=True, slots=True)
class Sort:
    """Judges, or questions."""

    noun: str
    """Names its commands, its addresses, and itself in answers."""
    done: str
    """Where an answer says how many rollouts were done."""
    at_work: str
    """What the bar says behind its name."""
    rate: Callable[[dict[str, Any]], str]
    """What the bar says of the work so far."""
    write: Callable[[dict[str, Any], str], None]
    """The work when it is over, and the address of its page."""

    def find(self, client: Client, name: str) -> dict[str, Any]:
        """By name or id."""
        for found in client.pages(f"/{self.noun}s"):
            if name in {found["name"], found["id"]}:
                return found
        fail(f"there is no {self.noun} {name!r}; `proctor {self.noun} list` shows them")

    def show(self, name: str, as_json: bool) -> None:
        found = self.find(connect(), name)
        if as_json:
            write_json(found)
        else:
            write_fields({self.noun: found["name"], "policy": found["policy"], **found["configuration"]})

    def delete(self, name: str, as_json: bool, *, told: str = "") -> None:
        """`told`: what stands before its name."""
        client = connect()
        found = self.find(client, name)
        client.delete(f"/{self.noun}s/{found['id']}")
        if as_json:
            write_json({"deleted": found["id"]})
            return
        say(f"{told}{found['name']} deleted")

    def start(self, name: str, run: str, asked: dict[str, Any], *, no_wait: bool, as_json: bool) -> None:
        """Ends with 1 where something is missing."""
        client = connect()
        id, run_id = self.find(client, name)["id"], run_of(client, run)["id"]
        work = client.post(f"/runs/{run_id}/{self.noun}s", {f"{self.noun}_id": id, **asked})
        if not no_wait:
            work = self._watch(client, run_id, work, quiet=as_json)
        page = f"{client.url}/runs/{run_id}/{self.noun}s"
        if as_json:
            write_json(work)
        elif no_wait:
            say(f"{work[self.noun]} is {work['status']}: {page}")
        else:
            self.write(work, page)
        is_bad = work["status"] != "completed" or work["failed"]
        raise typer.Exit(BAD_RESULT if is_bad and not no_wait else 0)

    def stop(self, name: str, run: str) -> dict[str, Any]:
        client = connect()
        run_id, id = run_of(client, run)["id"], self.find(client, name)["id"]
        work: dict[str, Any] = client.post(f"/runs/{run_id}/{self.noun}s/{id}/stop")
        return work

    def works_on(self, run: str) -> list[dict[str, Any]]:
        """What each of them says of a run."""
        client = connect()
        return list(client.pages(f"/runs/{run_of(client, run)['id']}/{self.noun}s"))

    def _watch(self, client: Client, run_id: str, work: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
        """Until it is over. Ctrl-C leaves it at work."""
        told = f"It goes on. `proctor {self.noun} stop {work[self.noun]} {short(run_id)}` stops it."
        with work_bar(f"{work[self.noun]} {self.at_work}", told, quiet=quiet) as move:
            while work["status"] not in OVER:
                time.sleep(POLL_SECONDS)
                found = client.pages(f"/runs/{run_id}/{self.noun}s")
                work = next(each for each in found if each[f"{self.noun}_id"] == work[f"{self.noun}_id"])
                move(total=work["total"], completed=work[self.done] + work["failed"], rate=self.rate(work))
        return work


def answer_of_try(client: Client, tried: dict[str, Any], address: str) -> dict[str, Any]:
    """As soon as it is there."""
    path = f"{address}/{tried['id']}"
    answer: dict[str, Any] = look_while(itemgetter("is_waiting"), tried, lambda: client.get(path))["answer"]
    return answer


def status_of(work: dict[str, Any]) -> str:
    return f"{work['status']}: {work['reason']}" if work["reason"] else str(work["status"])


def is_injectable(work: dict[str, Any]) -> bool | None:
    return work["canaries"]["is_injectable"] if work["canaries"] else None


def text_or_file(given: str | None) -> str | None:
    """As it is given, or what stands in the file behind an `@`."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{given[1:]} cannot be read: {error}")
