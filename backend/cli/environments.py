"""`proctor env …`: packages on disk and environments on the server."""

import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from backend.cli.connection import connect
from backend.cli.derived import Json, renders, takes_request
from backend.cli.names import EnvironmentName, version_of
from backend.cli.output import BAD_RESULT, OK, AsJson, NoWait, console, fail, group, say, write_json, write_table
from backend.cli.watching import POLL_SECONDS, watch
from backend.domain.text import JsonObject
from backend.web.formats import short

MARKS = {"passed": ("✓", "green"), "warned": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("–", "dim")}

app = group(help="Write, check and play environments.")


@app.command("init")
def init(
    name: Annotated[str, typer.Argument(help="Lower case letters, digits and `_`.")],
    template: Annotated[
        str,
        typer.Option(
            help="single_turn, multi_turn_game, tool_calling, code_execution, process_supervised, judged_answer or "
            "optimisation."
        ),
    ] = "single_turn",
    folder: Annotated[Path | None, typer.Option(help="Folder to write. Default: a folder with that name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a new package from a template. Needs no server."""
    from backend.cli import working_copy  # imports the manifest, which `up` does not need
    from backend.domain.environments.manifest import ManifestInvalid
    from backend.domain.environments.packages import PackageInvalid
    from backend.environments.library import TEMPLATES, render_template

    target = folder or Path(name)
    try:
        files = render_template(template, name)
    except KeyError:
        fail(f"there is no template {template!r}; there are {', '.join(known.name for known in TEMPLATES)}")
    except (ManifestInvalid, PackageInvalid) as error:
        fail(f"{name!r} cannot be an environment's name: {error}")
    working_copy.write_folder(target, files)
    if as_json:
        return write_json({"folder": str(target), "files": sorted(files)})
    say(f"{len(files)} files in {target}. `proctor env push {target}` sends them.")


@app.command("push")
@takes_request("environments.publish", "notes")
def push(
    request: Json,
    folder: Annotated[Path, typer.Argument(help="The package's folder.")] = Path(),
    publish: Annotated[bool, typer.Option("--publish", help="Publish the next version and run its checks.")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="With --publish: do not run the checks.")] = False,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="With --publish: score past rollouts with the new version's rewards.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a draft that has changed in the meantime.")] = False,
    to_hub: Annotated[str, typer.Option("--to-hub", metavar="OWNER/NAME", help="Send it as a Space instead.")] = "",
    private: Annotated[bool, typer.Option("--private", help="With --to-hub: a private Space.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --to-hub: only show what would be sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a package as the draft of its environment. A new environment is created.

    A draft that changed since this folder was pulled or pushed is not overwritten; the conflict is reported.
    With --to-hub nothing is sent to Proctor: the complete OpenEnv package becomes a Space of the Hugging Face Hub.
    """
    if to_hub:
        from backend.cli.hub import push_to_hub

        message = request.get("notes", "Sent by Proctor")
        return push_to_hub(folder, to_hub, message, is_private=private, is_dry_run=dry_run, as_json=as_json)
    if dry_run or private:
        fail("--dry-run and --private belong to --to-hub")
    if (no_check or regrade) and not publish:
        fail("--no-check and --regrade belong to --publish")
    from backend.cli import working_copy

    client = connect()
    draft = working_copy.push_draft(client, folder, force=force)
    name, problems = draft["environment"], draft["validation"]["problems"]
    version = None
    if publish and draft["validation"]["is_publishable"]:
        request |= {"revision": draft["revision"], "check": not no_check, "regrade": regrade}
        version = client.post(f"/environments/{name}/publish", request)
    if as_json:
        write_json({"environment": name, "revision": draft["revision"], "problems": problems, "version": version})
    else:
        for problem in problems:
            key = f"{problem['key']}: " if problem["key"] else ""
            say(f"{problem['path']}:{problem['line']}: {key}{problem['message']}")
        if version:
            say(f"{name} v{version['number']} is published ({version['content_hash'][:12]})")
            say(
                "it is not checked yet" if no_check else f"its checks run: `proctor env check {name}` waits for them",
                "dim",
            )
            if regrade:
                progress = f"`proctor env history {name}@{version['number']}` shows progress"
                say(f"past rollouts are being scored: {progress}", "dim")
        else:
            say(f"the draft of {name} is saved")
            plays = f"`proctor env try {name}` plays it, `--publish` makes a version"
            say("nothing is published" if problems else plays, "dim")
    raise typer.Exit(OK if draft["validation"]["is_publishable"] else BAD_RESULT)


@app.command("pull")
def pull(
    environment: EnvironmentName,
    folder: Annotated[Path | None, typer.Option(help="Folder to write. Default: a folder with its name.")] = None,
    version: Annotated[int | None, typer.Option("--version", min=1, help="A version instead of the draft.")] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="With a version: only its own files, without generated ones.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write an environment to disk: its draft, to edit and push, or a version, as a standalone package.

    `--version 3` (or NAME@3) gives the complete OpenEnv package: server, client, Dockerfile, README, pyproject and an
    inference.py that lets any OpenAI-compatible endpoint play it.
    """
    from backend.cli import working_copy

    client = connect()
    name, _, number = environment.partition("@")
    target = folder or Path(name)
    if version or number:
        address = f"/environments/{name}/versions/{version or number}"
        files = client.get(address if bare else f"{address}/export")["files"]
        working_copy.write_folder(target, files, force=force)
    else:
        files = working_copy.pull_draft(client, name, target, force=force)
    if as_json:
        return write_json({"folder": str(target), "files": sorted(files)})
    say(f"{len(files)} files in {target}")


@app.command("diff")
def diff(
    folder: Annotated[Path, typer.Argument(help="The package's folder.")] = Path(), as_json: AsJson = False
) -> None:
    """Show how a folder differs from the draft on the server. Exits with 1 if it does."""
    from backend.cli import working_copy

    lines = list(working_copy.differences(connect(), folder))
    if as_json:
        write_json({"differences": lines})
    else:
        for line in lines:
            say(line)
    raise typer.Exit(BAD_RESULT if lines else OK)


@renders("environments.list")
def show_environments(environments: list[JsonObject]) -> None:
    rows: list[tuple[object, ...]] = []
    for environment in environments:
        name, description, latest = environment["name"], environment["description"], environment["latest"]
        if latest is None:
            rows.append((name, "draft", None, None, "", description))
        else:
            rewards = " ".join(f"{column['name']}×{column['weight']:g}" for column in latest["columns"])
            version = latest["number"], latest["content_hash"][:12], latest["certificate"]
            rows.append((name, *version, rewards, description))
    columns = ("environment", "version", "hash", "certificate", "columns", "description")
    write_table(columns, rows, empty="No environments yet. Create one with `proctor env init`.")


@renders("environments.start_attack")
@renders("environments.cancel_attack")
@renders("environments.verify_repair")
def show_attack(attack: JsonObject) -> None:
    """Show an attack of the red team, or the verification of a repair, by its id."""
    say(f"{attack['kind']} {attack['id']}: {attack['message']}")
    for note in attack["notes"]:
        say(note)
    if attack["kind"] == "verification":
        results = [
            (each["status"] if each["applies"] else "does not apply", each["check"], each["evidence"])
            for each in attack["results"]
        ]
        write_table(("result", "check", "evidence"), results, empty="No results.")
        return
    exploits = [
        (
            each["attack"],
            f"{each['mean']:.3f}",
            f"{each['low']:.3f}",
            each["oracle"],
            each["fixture"],
            each["description"],
        )
        for each in attack["exploits"]
    ]
    columns = ("attack", "mean reward", "95% from", "oracle", "proposed fixture", "exploit")
    write_table(columns, exploits, empty="No exploit found. A longer or smarter search may find one.")


@app.command("check")
@takes_request("environments.start_checks", "policy")
def check(
    environment: EnvironmentName,
    request: Json,
    show: Annotated[
        bool, typer.Option("--show", help="Show the latest certificate without running the checks.")
    ] = False,
    signed: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the signed certificate.")] = None,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write SARIF, for code scanning.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML, for CI.")] = None,
    badge: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an SVG badge.")] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Run the checks of a version and show each result with its evidence. Exits with 1 if one fails."""
    client = connect()
    version = version_of(client, environment)
    address = f"/environments/{version['environment']}/versions/{version['number']}"
    if not show:
        started = client.post(f"{address}/checks", request)
        if no_wait:
            return write_json(started)
        run = watch(client, client.get(f"/runs/{started['run_id']}"), quiet=as_json)
        if run["status"] != "completed":
            fail(run["reason"] or f"the checks ended {run['status']}", BAD_RESULT)
    certificate = client.get(f"{address}/certificate")
    for form, file in (("signed", signed), ("sarif", sarif), ("junit", junit), ("badge", badge)):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            client.download(f"{address}/certificate/file", file, form=form)
    status = BAD_RESULT if certificate["status"] == "failed" else OK
    if as_json:
        write_json(certificate)
        raise typer.Exit(status)
    theme = None
    for result in certificate["results"]:
        if result.get("theme") != theme:
            theme = result.get("theme")
            say(f"\n{theme}" if theme else "", "bold")
        mark, style = MARKS[result["status"]]
        console().print(f"{mark} {result['check']:<22} {result['sentence']}", style=style, markup=False)
        cost = f"  ({result['seconds']:.2f} s, {result['episodes']} episodes)" if result.get("episodes") else ""
        say(f"    {result['evidence']}{cost}")
        if result["status"] in {"failed", "warned"}:
            if result.get("advice"):
                say(f"    {result['advice']}", "dim")
            if result.get("rollouts"):
                say("    rollouts: " + " ".join(short(str(rollout)) for rollout in result["rollouts"]), "dim")
    states = [
        str(result["status"]) if result.get("applies", True) else "not applicable" for result in certificate["results"]
    ]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())
    seconds = sum(result["seconds"] for result in certificate["results"])
    episodes = sum(result.get("episodes", 0) for result in certificate["results"])
    if coverage := certificate.get("coverage"):
        shares = (f"{each['found']} of {each['total']} {each['label']}" for each in coverage["shares"])
        figures = ("{score:.2f} [{low:.2f}, {high:.2f}]: " if coverage["score"] is not None else "").format(**coverage)
        say(f"\ncoverage of the grader: {figures}{'; '.join(shares)}")
    _, style = MARKS[certificate["status"]]
    say(f"\n{certificate['status']}: {counts}; {episodes:,} episodes in {seconds:.1f} s", style)
    say(f"holds for {certificate['content_hash']}", "dim")
    raise typer.Exit(status)


@app.command("play")
@takes_request("environments.start_play", "level", "index", "seed", "seat", "opponent")
def play(
    environment: EnvironmentName,
    request: Json,
    policy: Annotated[str, typer.Option(help="Policy (name or id) that plays while you watch.")] = "",
    turns: Annotated[
        int | None,
        typer.Option(min=1, help="With --policy: number of turns it plays before you continue. Default: all."),
    ] = None,
) -> None:
    """Play an episode in the terminal, by hand or with a policy. It is stored as a rollout."""
    from backend.cli.play import play_episode

    if turns is not None and not policy:
        fail("--turns belongs to --policy")
    client = connect()
    play_episode(client, version_of(client, environment), request, policy=policy, turns=turns)


@app.command("try")
@takes_request("environments.reset_trial", "level", "index", "seed")
def try_draft(
    environment: Annotated[str, typer.Argument(help="An environment, or a package's folder, which is pushed first.")],
    request: Json,
    script: Annotated[
        str, typer.Option(help="Scripted policy of the package that plays to the end, for example `gold`.")
    ] = "",
    reply: Annotated[
        list[str] | None, typer.Option(help="Reply to send instead of prompting for one. Repeat for several.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a draft that has changed in the meantime.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Push the folder and try it again after each change, until Ctrl-C. Default of --script: `gold`.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try a draft: reset it, act, and see the reward columns. No rollout is stored. Exits with 1 if it breaks."""
    from backend.cli import working_copy
    from backend.cli.play import try_episode
    from backend.domain.environments.packages import MANIFEST_PATH

    folder = Path(environment)
    if watch and as_json:
        fail("--watch and --json exclude each other")
    if watch and not (folder / MANIFEST_PATH).is_file():
        fail(f"--watch needs the folder of a package; {folder} has no {MANIFEST_PATH}")
    script = script or ("gold" if watch and not reply else "")
    client = connect()

    def attempt() -> NoReturn:
        name = environment
        if (folder / MANIFEST_PATH).is_file():
            draft = working_copy.push_draft(client, folder, force=force)
            if problems := draft["validation"]["problems"]:
                first = problems[0]
                fail(f"{first['path']}:{first['line']}: {first['key']} {first['message']}", BAD_RESULT)
            name = str(draft["environment"])
        try_episode(client, name, request, script=script, replies=reply or [], as_json=as_json)

    if not watch:
        attempt()
    for _ in working_copy.changes(folder):
        with suppress(typer.Exit):  # what is wrong was printed; the next change may mend it
            attempt()
        say(f"{datetime.now():%H:%M:%S}: waiting for changes in {folder}; Ctrl-C ends", "dim")
    if not (folder / MANIFEST_PATH).is_file():
        fail(f"{folder} has no {MANIFEST_PATH} anymore")


@app.command("score-draft")
def score_draft(
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="Id of a completed rollout.")],
    as_json: AsJson = False,
) -> None:
    """Score a rollout, its cluster and the history with the draft's reward before it is published."""
    client = connect()
    job = client.post(f"/rollouts/{rollout}/draft-score")
    while job["answer"] is None:
        time.sleep(POLL_SECONDS)
        job = client.get(f"/draft-scores/{job['id']}")
    if as_json:
        return write_json(job)
    answer = job["answer"]
    if answer["error"]:
        fail(answer["error"], BAD_RESULT)
    rows = []
    for name, part in (("this", answer["this"]), ("its pattern", answer["cluster"]), ("history", answer["history"])):
        means = [f"{part[when]['mean']:.4g}" if part[when] else "–" for when in ("before", "after")]
        rows.append((name, part["count"], *means, part["lower"], part["higher"]))
    say(f"by the draft of {job['environment']}, for {short(rollout)}")
    write_table(("episodes", "count", "before", "after", "lower", "higher"), rows, empty="")


@app.command("grant")
def grant(
    name: Annotated[str, typer.Argument(help="An environment or ENVIRONMENT@VERSION. Default: its latest version.")],
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw the grant.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Show the current state without changing it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Grant or withdraw network access for the servers of exactly this version. For administrators.

    A granted server can use the host's whole network, not only the hosts that its manifest names. Read its code first.
    """
    if withdraw and show:
        fail("--withdraw and --show exclude each other")
    client = connect()
    version = version_of(client, name)
    path = f"/environments/{version['environment']}/versions/{version['number']}/network"
    state = client.get(path) if show else client.request("DELETE" if withdraw else "PUT", path)
    if as_json:
        write_json(state)
    else:
        hosts = f" ({', '.join(state['hosts'])})" if state["hosts"] else ""
        by = f", by {state['granted_by']}" if state["granted_by"] else ""
        say(f"{version['environment']}@{version['number']}: network {state['words']}{hosts}{by}")
    is_done = not state["is_granted"] if withdraw else state["is_open"]
    raise typer.Exit(OK if is_done or show else BAD_RESULT)
