"""Write the reference pages that derive from the code: commands, settings, operations, checks, detectors and fields.

`make docs` calls it. The pages are not stored, so they cannot be out of date.
"""

import ast
import inspect
import itertools
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from fastapi.routing import APIRoute, iter_route_contexts

from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Subject
from backend.settings import ALL_FIELDS, PROJECT_ROOT
from workers.environments.checks.registry import CHECKS


def write_pages(folder: Path) -> None:
    pages = {
        "cli": commands,
        "settings": settings,
        "api-operations": operations,
        "check-list": checks,
        "detector-list": detectors,
        "rollout-fields": fields,
    }
    for name, write in pages.items():
        page, text = folder / f"{name}.md", write()
        if not page.is_file() or page.read_text() != text:
            page.write_text(text)


def checks() -> str:
    """Return a table of the environment checks by theme, from their declarations."""
    lines = [
        "# List of checks",
        "",
        "[Checks](certificate.md) explains certificates. A result is skipped if a check that it needs has failed.",
    ]
    for theme, members in itertools.groupby(CHECKS, key=lambda check: check.theme):
        lines += ["", f"## {theme.capitalize()}"]
        lines += ["| check | condition | method and threshold | runs |", "|---|---|---|---|"]
        checks = list(members)
        lines += [
            f"| [`{each.id}`](#{each.id}) | {each.sentence} | {each.method} | {each.cost.value} |" for each in checks
        ]
        for each in checks:
            example = inspect.cleandoc(each.example)
            lines += ["", f"### {each.id}", f"{each.label}. {each.advice} Example:", "", "```text", example, "```"]
    return "\n".join((*lines, "", "Thresholds without a source are Proctor's choice.", ""))


def commands() -> str:
    """Return every command with its arguments and options, as `--help` shows them."""
    typer = [sys.executable, "-m", "typer", "backend.cli.main", "utils", "docs", "--name", "proctor"]
    written = subprocess.run(typer, cwd=PROJECT_ROOT, check=True, capture_output=True, text=True).stdout
    title, _, rest = written.partition("\n")
    body = rest.replace("```console", "```text").replace("<path>", "path")
    return f"# Command line\n\n{body.strip()}\n" if title == "# `proctor`" else written


def settings() -> str:
    """Return a table of the environment variables, from the fields of settings and the texts below them."""
    source = ast.parse((PROJECT_ROOT / "backend" / "settings.py").read_text())
    lines = [line for node in source.body if isinstance(node, ast.ClassDef) for line in node.body]
    help_of: dict[str, str] = {}
    for line, text in pairwise(lines):
        match line, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                help_of[name] = " ".join(words.split())
    rows = []
    for name, field in ALL_FIELDS.items():
        alias = field.validation_alias
        variable = (
            str(alias.choices[0]) if alias is not None and hasattr(alias, "choices") else f"PROCTOR_{name.upper()}"
        )
        rows.append(f"| `{variable}` | {_default_of(name)} | {help_of.get(name, '')} |")
    return "\n".join((*SETTINGS_HEAD, *rows, ""))


SETTINGS_HEAD = (
    "# Settings",
    "",
    "Set these as environment variables or in a `.env` file in the folder where Proctor starts. On a single machine,",
    "`proctor up` needs none of them. `.env.example` is a template. Limits of the product are not settings.",
    "",
    "| variable | default | meaning |",
    "|---|---|---|",
)


def _default_of(name: str) -> str:
    default = ALL_FIELDS[name].default
    if isinstance(default, Path):
        default = default.relative_to(PROJECT_ROOT) if default.is_relative_to(PROJECT_ROOT) else default
    text = str(default)
    is_hidden = name in {"secret_key", "envhost_token", "token"} or default in (None, "")
    return "" if is_hidden else f"`{text.lower() if isinstance(default, bool) else text}`"


def fields() -> str:
    """Return a table of the fields that every rollout has, from their registry."""
    from backend.domain.rollouts.fields import FIELDS

    rows = []
    for field in FIELDS.values():
        uses = {"filter": field.is_filterable, "sort": field.is_sortable, "column": field.is_column}
        key = field.stored[0] if field.is_measured else field.name
        exported = "export" if key == field.name else f"export as `{key}`"
        uses[exported] = field.is_measured
        values = ", ".join(f"`{choice}`" for choice in field.choices)
        meaning = f"{field.help or field.heading}{': ' if values else ''}{values}"
        used = ", ".join(use for use, is_used in uses.items() if is_used)
        rows.append(f"| `{field.name}` | {field.kind.replace('_', ' ')} | {meaning} | {used} |")
    return "\n".join((*FIELDS_HEAD, *rows, ""))


FIELDS_HEAD = (
    "# Rollout fields",
    "",
    "Every rollout has these fields. Reward columns, metrics, judge scores and answers come from the run. See",
    "[filters](filters.md). Fields marked *export* are also in the JSON API and in [exports and imports](exchange.md),",
    "under the same name unless another one is given.",
    "",
    "| field | type | meaning | used in |",
    "|---|---|---|---|",
)


def operations() -> str:
    """Return every operation of the JSON API by feature, with the role it needs."""
    from backend.app import create_app
    from backend.web.routing import guarded_routes

    app = create_app()
    roles = {(path, method): role for path, methods, role in guarded_routes(app) for method in methods}
    rows: dict[str, list[str]] = {}
    for context in iter_route_contexts(app.routes):
        route, path = context.original_route, context.path or ""
        if isinstance(route, APIRoute) and path.startswith("/api/v1/") and route.include_in_schema:
            sentence = " ".join(
                (route.description or route.summary or route.name.replace("_", " ").capitalize())
                .split("\n\n")[0]
                .split()
            )
            for method in sorted(route.methods):
                operation = f"`{method} {path.removeprefix('/api/v1')}`"
                row = f"| {operation} | {roles[path, method] or ''} | {sentence.replace('|', BAR)} |"
                rows.setdefault(str((route.tags or ["other"])[0]), []).append(row)
    lines = ["# API operations", "", "Every operation of the JSON API and the lowest role that may call it.", ""]
    for tag in sorted(rows):
        lines += [
            f"## {tag.replace('-', ' ').capitalize()}",
            "",
            "| operation | role | description |",
            "|---|---|---|",
            *rows[tag],
            "",
        ]
    return "\n".join(lines)


BAR = r"\|"


def detectors() -> str:
    """Return a table of all detectors from their declarations, with their thresholds and sources."""
    lines = ["# List of detectors", "", "[Detectors](detectors.md) explains how they work and how to set them.", ""]
    for subject, title in ((Subject.ROLLOUT, "Rollout detectors"), (Subject.RUN, "Run detectors")):
        head = ("id", "detects", "formula", "thresholds", "needs", "cost", "source")
        lines += [f"## {title}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for name, spec in SPECS.items():
            if spec.subject is not subject:
                continue
            thresholds = ", ".join(f"`{key}` {setting.default:g}" for key, setting in spec.settings.items())
            needs = ", ".join(need.replace("_", " ") for need in spec.needs) or "–"
            cells = (f"`{name}`", spec.description, spec.formula, thresholds, needs, spec.cost, spec.source)
            lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)
