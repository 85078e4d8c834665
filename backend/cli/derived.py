"""Commands derived from the API's description: every operation that declares a command gets one.

Fields of the request become options with their defaults, limits and help; rows of the address become arguments. The
result is shown as a table, as fields or as a notice; with `--json` it is the response itself. Hand-written commands
take the options of an operation with `takes_request`.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from inspect import Parameter
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar
from urllib.parse import quote

import typer

from backend.cli.connection import connect
from backend.cli.output import BAD_RESULT, AsJson, NoWait, fail, plain, say, write_fields, write_json, write_table
from backend.cli.output import group as new_group
from backend.cli.watching import wait_for
from proctor import Client
from proctor import Json as Json

Renderer = TypeVar("Renderer", bound=Callable[..., None])
OutFile = Annotated[
    Path | None, typer.Option("--out", "--output", "-o", help="File or folder to write. Default: the file's own name.")
]

_TYPES: dict[str, type] = {"integer": int, "number": float, "boolean": bool}
_FIELD = re.compile(r"{(\w+)}")
_PAGING = {"after", "before", "limit"}
"""Parameters of lists. Other operations may have a `limit` as an ordinary option."""
_RENDERERS: dict[str, Callable[..., None]] = {}


def renders(operation: str) -> Callable[[Renderer], Renderer]:
    """Show the result of an operation, such as `graders.results`, with this function."""

    def declare(render: Renderer) -> Renderer:
        _RENDERERS[operation] = render
        return render

    return declare


@dataclass(frozen=True, slots=True)
class Input:
    """An option or argument of a command: a segment of the address or a field of the request."""

    name: str
    schema: Mapping[str, Json]
    is_required: bool
    is_segment: bool
    description: str

    def parameter(self) -> Parameter:
        hints = self.schema.get("x-cli", {})  # how the declaration spells it for the command line: see `Cli`
        is_list = self.schema.get("type") == "array"
        item = self.schema["items"] if is_list else self.schema
        is_file = self.schema.get("format") == "binary"
        kind = Path if is_file else _TYPES.get(item.get("type", "string"), str)
        default = [] if is_list else self.schema.get("default")
        optional = kind if self.is_required and not is_list else (list[kind] if is_list else kind | None)  # type: ignore[valid-type]
        choices = [str(each) for each in item.get("enum", ())]
        help = " ".join(filter(None, (self.description, f"One of: {', '.join(choices)}." if choices else "")))
        if self.is_segment or hints.get("argument") or is_file:
            info = typer.Argument(metavar=self.name.upper(), help=help)
            info.exists, info.dir_okay = is_file, not is_file
        else:
            flag: str = hints.get("option", f"--{self.name.replace('_', '-')}")
            if kind is bool and self.schema.get("default") is not False and "/" not in flag:
                flag = f"{flag}/--no-{flag.removeprefix('--')}"
            flags = (flag, *hints.get("aliases", ()))
            info = typer.Option(*flags, help=help, show_default=default not in (None, "", [], False))
        info.envvar = hints.get("envvar")
        if kind in (int, float):
            info.min, info.max = self.schema.get("minimum"), self.schema.get("maximum")
        return Parameter(
            self.name,
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[optional, info],
            default=Parameter.empty if self.is_required and not is_list else default,
        )


@dataclass(frozen=True, slots=True)
class Described:
    """An operation in the API's description."""

    id: str
    method: str
    path: str
    summary: str
    inputs: tuple[Input, ...]
    is_list: bool
    sends_body: bool
    extension: Mapping[str, Json]

    def call(self, client: Client, given: Mapping[str, Json]) -> Json:
        sent = _sent(self.inputs, given)
        path = self.path.format(
            **{each.name: quote(str(sent.pop(each.name)), safe="") for each in self.inputs if each.is_segment}
        )
        if self.extension.get("downloads"):
            if given["out"]:
                given["out"].parent.mkdir(parents=True, exist_ok=True)
            file = client.download(path, given["out"], **sent)
            return {"file": str(file), "bytes": file.stat().st_size}
        if uploads := self.extension.get("uploads"):
            return client.upload(path, {name: Path(sent.pop(name)) for name in uploads if name in sent}, sent)
        if self.is_list:
            return list(client.pages(path, limit=given.get("limit"), **sent))
        return client.request(self.method, path, **{"body" if self.sends_body else "query": sent})

    def command(self, fixed: Mapping[str, Json] = MappingProxyType({})) -> Callable[..., None]:
        """Return a function with the signature that Typer expects. Inputs with a `fixed` value are no options.

        As the callback of a group it does nothing if a command of the group follows.
        """

        def run(group: typer.Context, **given: Json) -> None:
            if group.invoked_subcommand:
                return
            client, given = connect(), {**given, **fixed}
            result = self.call(client, given)
            has_waited = self.extension.get("waits") and not given.get("no_wait")
            if has_waited:
                poll = self._fill(self.extension["poll"], result, given)
                result = wait_for(client, poll, result, quiet=given["as_json"])
            self._write(result, given)
            if (has_waited and not result["is_successful"]) or (isinstance(result, dict) and result.get("problem")):
                raise typer.Exit(BAD_RESULT)

        limit = self.extension.get("limit")
        limit_help = "Maximum number of rows." if limit else "Maximum number of rows. Default: all."
        row_limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help=limit_help)]
        common = [
            ("limit", row_limit, limit, self.is_list),
            ("no_wait", NoWait, False, self.extension.get("waits")),
            ("out", OutFile, None, self.extension.get("downloads")),
            ("as_json", AsJson, False, True),
        ]
        parameters = [
            Parameter("group", Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(each.parameter() for each in self.inputs if each.name not in fixed),
            *(
                Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
                for name, annotation, default, is_offered in common
                if is_offered
            ),
        ]
        return _with_signature(run, parameters, self.summary)

    def _write(self, result: Json, given: Mapping[str, Json]) -> None:
        if given["as_json"]:
            write_json(result)
        elif render := _RENDERERS.get(self.id):
            render(result)
        elif self.is_list:
            columns = self.extension.get("columns") or list(result[0] if result else ())
            rows = [[row.get(column) for column in columns] for row in result]
            names = [column.replace("_", " ") for column in columns]
            write_table(names, rows, empty=self.extension.get("empty", "Nothing yet."))
        elif self.extension.get("downloads"):
            say(f"{result['file']}: {result['bytes']:,} bytes")
        elif notice := self.extension.get("notice"):
            say(self._fill(notice, result, given))
        elif result is not None:
            columns = self.extension.get("columns") or list(result)
            write_fields({column.replace("_", " "): plain(result.get(column)) for column in columns})

    def _fill(self, text: str, result: Json, given: Mapping[str, Json]) -> str:
        known = {**given, **(result or {})}
        return _FIELD.sub(lambda field: str(known.get(field[1], "")), text)


def add_commands(app: typer.Typer, groups: Mapping[str, typer.Typer], document: Json) -> None:
    """Add each described command to the group of its first words, or to the program itself.

    A command with the name of a group runs if no command of the group follows.
    """
    groups = dict(groups)
    for operation in described(document):
        if (whole := operation.extension.get("command")) in groups:
            groups[whole].callback(invoke_without_command=True)(operation.command())
        elif whole:
            *words, name = whole.split()
            group = " ".join(words)
            if group and group not in groups:
                groups[group] = new_group(help=f"Commands for {group}.")
                app.add_typer(groups[group], name=group)
            (groups[group] if group else app).command(name)(operation.command())


def takes_request(
    operation: str, *names: str, optional: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a hand-written command the options of these fields of an operation, in place of its parameter `request`.

    `request` holds the values that differ from the defaults. `optional`: the fields have no defaults.
    """

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        inputs = [each for name in names for each in operations()[operation].inputs if each.name == name]
        if optional:
            inputs = [
                replace(each, is_required=False, schema={k: v for k, v in each.schema.items() if k != "default"})
                for each in inputs
            ]

        def run(**given: Json) -> None:
            request = _sent(inputs, {each.name: given.pop(each.name) for each in inputs})
            command(**given, request=request)

        parameters: list[Parameter] = []
        for each in inspect.signature(command).parameters.values():
            if each.name == "request":
                parameters += [each.parameter() for each in inputs]
            else:
                parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY))
        return _with_signature(run, parameters, inspect.getdoc(command) or "")

    return declare


def _sent(inputs: Sequence[Input], given: Mapping[str, Json]) -> dict[str, Json]:
    """Return the values that differ from the defaults, with the content of files for `@FILE`."""
    values = {}
    for each in inputs:
        value = given[each.name]
        if value in (None, [], each.schema.get("default")):
            continue
        if each.schema.get("x-cli", {}).get("reads_file") and value.startswith("@"):
            try:
                value = Path(value[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                fail(f"{value[1:]} cannot be read: {error}")
        values[each.name] = value
    return values


def _with_signature(run: Callable[..., None], parameters: list[Parameter], summary: str) -> Callable[..., None]:
    """Give Typer a function's parameters, required ones first, and its help."""
    parameters.sort(key=lambda each: each.default is not Parameter.empty)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = summary
    return run


@lru_cache(maxsize=1)
def api_description() -> Json:
    return json.loads(files("proctor").joinpath("openapi.json").read_bytes())


@lru_cache(maxsize=1)
def operations() -> dict[str, Described]:
    """Return the operations of this version by id, such as `runs.stop`."""
    return {each.id: each for each in described(api_description())}


def described(document: Json) -> Iterator[Described]:
    """Yield the operations of an API's description."""
    schemas = document["components"]["schemas"]

    def resolve(schema: Json) -> Json:
        """Follow references, and read `T | null` as T."""
        rest = {name: value for name, value in schema.items() if name not in {"$ref", "anyOf"}}
        if "$ref" in schema:
            return resolve(schemas[schema["$ref"].rsplit("/", 1)[-1]] | rest)
        options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
        if len(options) == 1:
            return resolve(options[0]) | rest
        if "items" in schema:
            return schema | {"items": resolve(schema["items"])}
        return schema

    for path, methods in document["paths"].items():
        for method, route in methods.items():
            if not (extension := route.get("x-proctor")):
                continue
            answer: Json = next((found for status, found in route["responses"].items() if status.startswith("2")), {})
            result = answer.get("content", {}).get("application/json", {}).get("schema", {})
            is_list = method == "get" and "Page_" in result.get("$ref", "")
            inputs = [
                Input(
                    each["name"],
                    resolve(each["schema"]),
                    each.get("required", False),
                    each["in"] == "path",
                    each.get("description", ""),
                )
                for each in route.get("parameters", ())
                if each["name"] not in _PAGING - (set() if is_list else {"limit"})
            ]
            contents = route.get("requestBody", {}).get("content", {})
            body = next((content["schema"] for content in contents.values()), None)
            if body:
                model = resolve(body)
                inputs += [
                    Input(name, resolve(each), name in model.get("required", ()), False, each.get("description", ""))
                    for name, each in model.get("properties", {}).items()
                ]
            yield Described(
                id=route["operationId"],
                method=method.upper(),
                path=path.removeprefix("/api/v1"),
                summary=route.get("description", ""),
                inputs=tuple(inputs),
                is_list=is_list,
                sends_body=body is not None,
                extension=extension,
            )
