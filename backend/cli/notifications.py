"""`proctor notifications …`: what Proctor told, and where it is sent."""

from typing import Annotated, Any

import typer

from backend.cli.connection import connect
from backend.cli.options import AsJson, Limit, NoWait
from backend.cli.output import BAD_RESULT, fail, say, write_fields, write_json, write_table
from backend.cli.watching import look_while
from proctor import Client

app = typer.Typer(
    help="Notices: read them, choose where they are sent, see how that went.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="DESTINATION", help="A destination's name or id.")]
Kinds = Annotated[
    list[str] | None, typer.Option("--kind", help="Send only this kind of notices; repeatable. Default: all.")
]
Secret = Annotated[
    str, typer.Option(envvar="PROCTOR_NOTIFICATION_SECRET", help="Signing secret or password; better by the variable.")
]
Off = Annotated[bool, typer.Option("--off", help="Keep it, but send nothing there.")]


@app.command("list")
def list_notices(
    unread: Annotated[bool, typer.Option("--unread", help="Only what you have not read.")] = False,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """What Proctor told, newest first."""
    found = list(connect().pages("/notices", limit=limit, unread=unread or None))
    if as_json:
        write_json(found)
        return
    rows = [(each["created_at"][:16], each["kind"], each["title"], each["is_read"], each["url"]) for each in found]
    write_table(("when", "kind", "title", "read", "page"), rows, empty="Nothing was told.")


@app.command("read")
def read(
    notice: Annotated[str, typer.Argument(metavar="[NOTICE]", help="Its id; without one all of them.")] = "",
    as_json: AsJson = False,
) -> None:
    """Mark a notice, or all, as read by you."""
    answer = connect().post(f"/notices/{notice}/read" if notice else "/notices/read")
    if as_json:
        write_json(answer)
    else:
        say("read" if notice else "all read")


@app.command("destinations")
def list_destinations(as_json: AsJson = False) -> None:
    """Where notices are sent. For administrators, like all that follows."""
    found = list(connect().pages("/notifications/destinations"))
    if as_json:
        write_json(found)
        return
    rows = [
        (
            *(each["name"], each["kind"], ", ".join(each["kinds"]) or "all", each["is_enabled"]),
            *(each["has_secret"], _place(each["configuration"])),
        )
        for each in found
    ]
    write_table(("name", "kind", "takes", "on", "secret", "where"), rows, empty="Nothing is sent anywhere.")


@app.command("webhook")
def webhook(
    name: Annotated[str, typer.Argument(help="A new destination, or one to change.")],
    url: Annotated[str, typer.Argument(help="Where notices are posted to as JSON.")],
    secret: Secret = "",
    kinds: Kinds = None,
    off: Off = False,
    as_json: AsJson = False,
) -> None:
    """Post notices to an address; with a secret they are signed."""
    body = {"kind": "webhook", "name": name, "url": url, "secret": secret, "kinds": kinds or [], "is_enabled": not off}
    _save(name, body, as_json=as_json)


@app.command("email")
def email(
    name: Annotated[str, typer.Argument(help="A new destination, or one to change.")],
    host: Annotated[str, typer.Argument(help="The SMTP server.")],
    sender: Annotated[str, typer.Option("--from", help="The sender's address.")],
    recipients: Annotated[list[str], typer.Option("--to", help="A recipient's address; repeatable.")],
    port: Annotated[int | None, typer.Option(help="Default: 587, with tls 465, with none 25.")] = None,
    security: Annotated[str, typer.Option(help="starttls, tls or none.")] = "starttls",
    user: Annotated[str, typer.Option(help="Who signs in; default: nobody.")] = "",
    secret: Secret = "",
    kinds: Kinds = None,
    off: Off = False,
    as_json: AsJson = False,
) -> None:
    """Send notices by e-mail."""
    body = {
        "kind": "email",
        "name": name,
        "host": host,
        "port": port,
        "security": security,
        "user": user,
        "sender": sender,
        "recipients": recipients,
        "secret": secret,
        "kinds": kinds or [],
        "is_enabled": not off,
    }
    _save(name, body, as_json=as_json)


@app.command("delete")
def delete(destination: Name, as_json: AsJson = False) -> None:
    """Send nothing there any more."""
    client = connect()
    found = destination_of(client, destination)
    client.delete(f"/notifications/destinations/{found['id']}")
    if as_json:
        write_json({"deleted": found["id"]})
    else:
        say(f"{found['name']} deleted")


@app.command("test")
def try_out(destination: Name, no_wait: NoWait = False, as_json: AsJson = False) -> None:
    """Send a test. Ends with 1 when its first attempt fails."""
    client = connect()
    delivery = client.post(f"/notifications/destinations/{destination_of(client, destination)['id']}/test")
    _tell(client, delivery, no_wait=no_wait, as_json=as_json)


@app.command("deliveries")
def deliveries(limit: Limit = 20, as_json: AsJson = False) -> None:
    """How sending went, newest first."""
    found = list(connect().pages("/notifications/deliveries", limit=limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (each["created_at"][:16], each["destination"], each["title"], each["status"], each["error"], each["id"])
        for each in found
    ]
    write_table(("when", "to", "notice", "state", "last error", "id"), rows, empty="Nothing was sent.")


@app.command("resend")
def resend(
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="Its id.")],
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Send one again. Ends with 1 when its first attempt fails."""
    client = connect()
    sent = client.post(f"/notifications/deliveries/{delivery}/again")
    _tell(client, sent, no_wait=no_wait, as_json=as_json)


def destination_of(client: Client, name: str) -> dict[str, Any]:
    found = _find(client, name)
    if found is None:
        fail(f"there is no destination {name!r}; `proctor notifications destinations` shows them")
    return found


def _find(client: Client, name: str) -> dict[str, Any] | None:
    every = client.pages("/notifications/destinations")
    return next((each for each in every if name in {each["name"], each["id"]}), None)


def _save(name: str, body: dict[str, Any], *, as_json: bool) -> None:
    client = connect()
    known = _find(client, name)
    if known:
        body["name"] = known["name"]
        saved = client.put(f"/notifications/destinations/{known['id']}", body)
    else:
        saved = client.post("/notifications/destinations", body)
    if as_json:
        write_json(saved)
    else:
        say(f"{saved['name']} is set; try it: proctor notifications test {saved['name']}")


def _tell(client: Client, delivery: dict[str, Any], *, no_wait: bool, as_json: bool) -> None:
    if not no_wait:
        path = f"/notifications/deliveries/{delivery['id']}"
        delivery = look_while(_is_unsent, delivery, lambda: client.get(path))
    if as_json:
        write_json(delivery)
    else:
        write_fields({name: delivery[name] for name in ("id", "destination", "status", "attempts", "error")})
    raise typer.Exit(0 if no_wait or delivery["status"] == "delivered" else BAD_RESULT)


def _is_unsent(delivery: dict[str, Any]) -> bool:
    return delivery["status"] == "waiting" and not delivery["attempts"]


def _place(configuration: dict[str, Any]) -> str:
    return str(configuration.get("url") or f"{', '.join(configuration['recipients'])} by {configuration['host']}")
