"""The parsers of foreign bytes, one target each, with what each may raise and a few honest inputs."""

import io
import json
import math
import tarfile
import tempfile
import zipfile
from pathlib import Path

from backend.domain.environments.fixtures import FixtureInvalid, read_fixture
from backend.domain.environments.foreign import read_foreign
from backend.domain.environments.manifest import ActionSpec, ManifestInvalid, read_manifest
from backend.domain.environments.packages import PackageInvalid, pack, read_toml, unpack
from backend.domain.environments.prompts import parse_reply, render_observation
from backend.domain.environments.tools import CallUnreadable, ToolsUnusable, read_tools, split_calls
from backend.domain.errors import RolloutError
from backend.domain.rollouts.fields import Field, FieldKind
from backend.domain.rollouts.filters import FilterError, parse
from backend.environments.import_package import make_ready
from backend.environments.import_sources import read_zip
from backend.environments.library import load_package
from backend.environments.validation import validate_package
from backend.rollouts.formats.bounds import BadFile
from backend.rollouts.formats.reading import open_file
from tests.security.fuzz.engine import Target
from workers.environments import packages, wire
from workers.environments.inside.shared_connection import join_messages, split_messages
from workers.policies.chat_format import NoCompletion, read_completion
from workers.training.api.wire import BadRequest, read_pass

PACKAGE = load_package("tictactoe")
MANIFEST = PACKAGE["openenv.yaml"]
SEARCH = {
    "name": "search",
    "description": "Find pages.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
TOOLS = read_tools([SEARCH])
CALL = '<tool_call>{"name": "search", "arguments": {"query": "leave"}}</tool_call>'
SPECS = (
    ActionSpec(format="tag", tag="move", field="cell", type="integer"),
    ActionSpec(format="text", field="answer", type="number"),
    ActionSpec(format="json"),
    ActionSpec.model_validate({"format": "tool", "field": "tool", "tools": [SEARCH]}),
)
OBSERVATION = {
    "message": "Your move.",
    "board": [["x", ""], ["", "o"]],
    "turn": 3,
    "score": 0.5,
    "hint": None,
    "moves": [{"name": "up", "cost": 2}],
}
FIELDS = {
    "reward": Field("reward", FieldKind.NUMBER),
    "status": Field("status", FieldKind.CHOICE, choices=("completed", "failed")),
    "flag": Field("flag", FieldKind.WORD),
    "text": Field("text", FieldKind.TEXT),
    "truncated": Field("truncated", FieldKind.YES_NO),
}
PASS = bytes.fromhex(
    "0a016d10011a2a0a0c0a0a0a080100000002000000121a0a0777656967687473120f0a080000803f0000803f18012201"
    "02220d63726f73735f656e74726f70792a0c0a016111000000000000f03f3001"
)
"""One sequence for the training API."""
BRACKETS = tuple(sign.encode() for sign in "[]{}(),:")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _manifest(data: bytes) -> None:
    manifest = read_manifest(_text(data))
    stored = manifest.model_dump_json()
    if "NaN" in stored or "\\u0000" in stored or type(manifest).model_validate_json(stored) != manifest:
        raise AssertionError("a manifest cannot be stored and read again")


def _package(data: bytes) -> None:
    validate_package({**PACKAGE, "openenv.yaml": _text(data)})


def _python(data: bytes) -> None:
    validate_package({**PACKAGE, "server/extra.py": _text(data)})


def _template(data: bytes) -> None:
    render_observation(_text(data), OBSERVATION)


def _message(data: bytes) -> None:
    received: str | bytes = data if data[:1] == b"{" else _text(data)  # bytes on a shared connection
    answer = wire.read_message(received, "step")
    fields = answer.get("data")
    if not isinstance(fields, dict):
        return
    if answer.get("type") == "error":
        raise wire.read_error(fields, "step")
    observed = wire.read_observation(fields)
    if not all(math.isfinite(value) for value in observed.rewards.values()):
        raise AssertionError("a reward is not finite")


def _shared_frame(data: bytes) -> None:
    messages = list(split_messages(data))
    again = b"".join(join_messages((number, b"" if text is None else text) for number, text in messages))
    if [number for number, _ in split_messages(again)] != [number for number, _ in messages]:
        raise AssertionError("a frame that was taken apart cannot be put together again")


def _reply(data: bytes) -> None:
    for spec in SPECS:
        parsed = parse_reply(spec, _text(data), TOOLS)
        json.dumps(parsed.action)


def _tools(data: bytes) -> None:
    try:
        listed = json.loads(data)
    except (ValueError, RecursionError):
        return
    for tool in read_tools(listed):
        tool.problem({"query": "x", "a" * 30: [1, {"b": None}]})


def _imported(data: bytes) -> None:
    make_ready(read_foreign({"openenv.yaml": data, "server/app.py": b"app = 1\n", "pyproject.toml": data}))


def _uploaded(data: bytes) -> None:
    files, folder = read_zip(data, "package.zip")
    make_ready(read_foreign(files, folder))


def _host(data: bytes) -> None:
    packages.resources_of(_text(data))
    packages.describe("0" * 64, Path("x.zip"), {**PACKAGE, "openenv.yaml": _text(data)})


def _requirements(data: bytes) -> None:
    packages.requirements_of({"pyproject.toml": _text(data)})
    packages.requirements_of({"requirements.txt": _text(data)})


def _rollouts(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rollouts"
        file.write_bytes(data)
        for _, record in open_file(file, Path(folder)).records():
            record.model_dump_json()


def _zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            described = tarfile.TarInfo(name)
            described.size = len(content)
            archive.addfile(described, io.BytesIO(content))
    return buffer.getvalue()


SMALL = {"openenv.yaml": MANIFEST.encode(), "server/app.py": b"app = 1\n", "pyproject.toml": b"[project]\nname='a'\n"}
RECORD = {
    "messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
    "reward": 1.0,
    "columns": {"win": 1.0},
}
COMPLETION = {
    "choices": [{"message": {"content": "4", "tool_calls": None}, "finish_reason": "stop", "logprobs": None}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
}
FRAME = {"type": "observation", "data": {"observation": {"a": 1}, "reward": 0.5, "done": False, "metadata": {}}}
ERROR = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no", "errors": [{"loc": ["a"], "msg": "b"}]}}
YAML_WORDS = (
    *BRACKETS,
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!int ",
    b"!!timestamp ",
    b"2001-99-99",
    b".nan",
    b"- ",
    b"? ",
    b"|\n",
)

TARGETS = {
    target.name: target
    for target in (
        Target("manifest", _manifest, (ManifestInvalid,), (MANIFEST.encode(), b"name: a\nproctor: {}\n"), YAML_WORDS),
        Target("package", _package, (), (MANIFEST.encode(),), YAML_WORDS),
        Target(
            "python",
            _python,
            (),
            (b"class A(Action):\n    cell: int\n\ndef f(x):\n    return [y for y in x]\n",),
            (*BRACKETS, b"f'{", b"lambda: ", b"not ", b"-", b"class A(A): pass\n", b"    "),
        ),
        Target(
            "template",
            _template,
            (ValueError,),
            (
                b"{{ message }} {{ board|tojson }}",
                b"{% for row in board %}{% for c in row %}{{ c or '.' }}{% endfor %}\n{% else %}-{% endfor %}",
                b"{% set a = turn + 1 %}{% if a > 2 and hint is none %}{{ '%.2f'|format(score) }}{% endif %}",
                b"{% for k, v in moves[0].items() %}{{ loop.index }}{{ k ~ v }}{% endfor %}",
                b"{{ moves|map(attribute='name')|join }}{% filter upper|indent(2) %}a{% endfilter %}",
                b"{% set n = namespace(x=1) %}{% set n.x = n.x * 2 %}{{ n.x }}",
            ),
            (
                *(
                    *BRACKETS,
                    b"{{ ",
                    b" }}",
                    b"{% ",
                    b" %}",
                    b"{% if turn %}",
                    b"{% endif %}",
                    b"|",
                    b".",
                    b"~",
                    b"**",
                    b"*",
                ),
                *(
                    b"not ",
                    b"-",
                    b" if ",
                    b" else ",
                    b" is ",
                    b" in ",
                    b"range(99999)",
                    b"__class__",
                    b"[1:2]",
                    b"message",
                ),
                *(
                    b"|wordwrap(1)",
                    b"|indent(99)",
                    b"|center(999)",
                    b"|replace('', message)",
                    b"|batch(999)",
                    b"|groupby(0)",
                ),
                *(
                    b"|sort",
                    b"|list",
                    b"|int",
                    b"|round(20)",
                    b"|format(1)",
                    b"|map('upper')",
                    b"|select('eq', 1)",
                    b"|sum",
                ),
            ),
        ),
        Target(
            "shared frame",
            _shared_frame,
            (ValueError,),
            tuple(join_messages([(0, b'{"type": "reset"}'), (1, b""), (2, b"x" * 100)])),
            (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00" * 8),
        ),
        Target(
            "message",
            _message,
            (RolloutError,),
            (json.dumps(FRAME).encode(), json.dumps(ERROR).encode()),
            (*BRACKETS, b"null", b"true", b'"rewards"', b'{"win": 1}', b"1e308", b"[]"),
        ),
        Target(
            "reply",
            _reply,
            (),
            (b"I take <move>5</move>.", b'```json\n{"a": 1}\n```', CALL.encode(), b"0.5"),
            (*BRACKETS, b"<move>", b"</move>", b"<tool_call>", b"</tool_call>", b"NaN", b"Infinity", b"\xd9\xa3"),
        ),
        Target(
            "calls",
            lambda data: split_calls(_text(data)),
            (CallUnreadable,),
            (CALL.encode(), (CALL + CALL).encode()),
            (*BRACKETS, b"<tool_call>", b"</tool_call>", b'"arguments": '),
        ),
        Target(
            "tools",
            _tools,
            (ToolsUnusable,),
            (json.dumps([SEARCH]).encode(), json.dumps([{"type": "function", "function": SEARCH}]).encode()),
            (
                *(
                    *BRACKETS,
                    b'"$ref": "#",',
                    b'"allOf": [{}],',
                    b'"patternProperties": {"(a+)+$": {}},',
                    b'"enum": [1],',
                ),
                *(
                    b'"additionalProperties": false,',
                    b'"multipleOf": 0.1,',
                    b'"uniqueItems": true,',
                    b'"$dynamicRef": "#a",',
                ),
                *(b'"unevaluatedProperties": false,', b'"type": 7,', b'"$id": "http://[",', b'"if": {}, "then": 1,'),
            ),
        ),
        Target(
            "completion",
            read_completion,
            (NoCompletion,),
            (json.dumps(COMPLETION).encode(),),
            (*BRACKETS, b"null", b'"tool_calls": [{"function": {}}],', b'"usage": []', b"1e308"),
        ),
        Target(
            "zip",
            unpack,
            (PackageInvalid,),
            (pack({"openenv.yaml": "a: 1\n", "a.py": "x = 1\n"}),),
            (b"PK\x03\x04", b"PK\x05\x06"),
        ),
        Target("import", _imported, (PackageInvalid,), (MANIFEST.encode(), b"name: a\napp: b:c\n"), YAML_WORDS),
        Target(
            "upload",
            _uploaded,
            (PackageInvalid,),
            (_zip_of(SMALL), _zip_of({f"a/{path}": data for path, data in SMALL.items()}), _tar_of(SMALL)),
            (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"../"),
        ),
        Target("host", _host, (PackageInvalid,), (MANIFEST.encode(),), YAML_WORDS),
        Target(
            "requirements",
            _requirements,
            (PackageInvalid,),
            (b'[project]\nname = "a"\ndependencies = ["numpy>=2"]\n', b"numpy>=2\n-r x\nopenenv @ git+https://x\n"),
            (*BRACKETS, b"[[", b"]]", b".a", b'"""', b" @ file:///", b"; python_version<'3'"),
        ),
        Target(
            "toml",
            lambda data: read_toml(_text(data)),
            (PackageInvalid,),
            (b'[a.b]\nc = [1, {d = "e"}]\n',),
            (*BRACKETS, b".a", b"="),
        ),
        Target(
            "fixture",
            lambda data: read_fixture("fixtures/a.json", _text(data)),
            (FixtureInvalid,),
            (b'{"task": {"split": "heldout", "index": 3}, "replies": ["a"], "columns": {"win": 1}}',),
            (*BRACKETS, b"NaN", b"Infinity", b"null", b'"kind": "gold",'),
        ),
        Target(
            "filter",
            lambda data: parse(_text(data), FIELDS),
            (FilterError,),
            (b"has flag and reward = 0", b"status = completed and (reward < 0.2 or truncated)", b'text ~ "I give up"'),
            (b"not ", b"(", b")", b" and ", b" or ", b" in (1, 2)", b'"', b"'", b"metric.x > 1", b"\\"),
        ),
        Target(
            "rollouts",
            _rollouts,
            (BadFile,),
            (json.dumps(RECORD).encode() + b"\n", b'{"prompt": "a", "completion": "b", "reward": 1}\n'),
            (
                *BRACKETS,
                b"null",
                b'"steps": [{}],',
                b'"tokens": {},',
                b'"tool_calls": [7],',
                b"PAR1",
                b"PK\x03\x04",
                b"\n",
            ),
        ),
        Target(
            "training_pass",
            read_pass,
            (BadRequest,),
            (PASS,),
            (b"\xff\xff\xff\x7f", b"\x1a\x04", b"\x12\x00", b"\x20\x03"),
        ),
    )
}
