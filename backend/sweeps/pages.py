"""The list of sweeps, the form that starts one, and the page of a sweep while it runs."""

import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session
from starlette.datastructures import FormData

from backend.core.events import SWEEPS
from backend.domain.ids import new_id
from backend.domain.sweeps.space import MAX_PARAMETERS
from backend.domain.sweeps.sweep import FEWEST_FOR_IMPORTANCE, SweepPruner, SweepSampler
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.errors import InvalidInput
from backend.runs.curves import MAX_CURVES
from backend.runs.queries import versions as run_versions
from backend.sweeps import launch, queries
from backend.sweeps.chart import parallel_coordinates
from backend.sweeps.launch import setting_fields
from backend.sweeps.schemas import ListSweeps, StartSweep, SweepDetail
from backend.training.setting_texts import nest, write
from backend.web.dependencies import ElsewhereTrainer, SessionDep, Viewer
from backend.web.field_messages import validate
from backend.web.page import page, see_other
from backend.web.streams import live_page

router = APIRouter()

ROWS = 5
"""Settings for which the form has room at first."""
SEARCH = ("sampler", "pruner", "trials", "parallel", "startup_trials", "max_steps", "max_hours", "seed")
"""Fields of the request that the form sends as they are."""
SAMPLERS = {
    SweepSampler.TPE: "Near the best values so far (TPE)",
    SweepSampler.RANDOM: "Random",
    SweepSampler.GRID: "Grid: every combination",
}
PRUNERS = {
    SweepPruner.MEDIAN: "Runs below the median",
    SweepPruner.HALVING: "All but the best third (successive halving)",
    SweepPruner.NONE: "None",
}


@dataclass(slots=True)
class ParameterRow:
    """A setting in the form, with the text as it was typed."""

    name: str = ""
    values: str = ""
    low: str = ""
    high: str = ""
    scale: str = "linear"
    points: str = ""

    def parameter(self) -> dict[str, object]:
        values = [each.strip() for each in self.values.split(",")] if self.values else None
        limits = {name: text for name in ("low", "high", "points") if (text := getattr(self, name))}
        return {"values": values, **limits, **({"log": True} if self.scale == "log" else {})}


@dataclass(slots=True)
class SweepForm:
    """The form as it was sent, or as an address fills it in."""

    version_id: str = ""
    preset: str = ""
    name: str = ""
    without_certificate: str = ""
    settings: str = ""
    """`name=value` lines: settings of all runs."""
    key: str = ""
    rows: list[ParameterRow] = field(default_factory=list)
    search: dict[str, str] = field(default_factory=dict)

    def request(self) -> StartSweep:
        """Raises InvalidInput with the name of each wrong field."""
        wrong: dict[str, str] = {}
        choices: dict[str, str] = {}
        for line in filter(None, map(str.strip, self.settings.splitlines())):
            name, mark, value = line.partition("=")
            if not mark:
                wrong["settings"] = f"Write each setting as name=value, one a line. This line has no =: {line[:80]}"
            choices[name.strip()] = value
        parameters: dict[str, object] = {}
        for row in self.rows:
            if row.name in parameters:
                wrong[f"parameters.{row.name}"] = "This setting is listed twice."
            parameters[row.name] = row.parameter()
        if not parameters:
            wrong["parameters"] = "Choose at least one setting to vary."
        if wrong:
            raise InvalidInput(fields=wrong)
        plain = {
            "version_id": self.version_id,
            "preset": self.preset,
            "name": self.name,
            "without_certificate": self.without_certificate,
            "key": self.key,
            **self.search,
        }
        given = {name: text for name, text in plain.items() if text.strip()}
        return validate(StartSweep, {**given, "configuration": nest(choices), "parameters": parameters})


def filled_form(request: Request) -> SweepForm:
    """The form as an address fills it in: dotted names are settings of all runs, as the launch page links them."""
    query = request.query_params
    known = TrainingConfiguration.model_fields
    lines = [f"{name}={text}" for name, text in query.items() if name.partition(".")[0] in known]
    return SweepForm(
        version_id=query.get("version_id", ""),
        preset=query.get("preset", ""),
        name=query.get("name", ""),
        without_certificate=query.get("without_certificate", ""),
        settings="\n".join(lines),
        key=new_id().hex,
    )


async def sent_form(request: Request) -> SweepForm:
    form = await request.form()
    columns = [_texts(form, f"parameter_{name}") for name in ("name", "values", "low", "high", "scale", "points")]
    rows = [ParameterRow(*cells) for cells in zip(*columns, strict=False) if cells[0]]
    return SweepForm(
        version_id=_text(form, "version_id"),
        preset=_text(form, "preset"),
        name=_text(form, "name"),
        without_certificate=_text(form, "without_certificate"),
        settings=_text(form, "settings"),
        key=_text(form, "key"),
        rows=rows[: MAX_PARAMETERS + 1],
        search={name: _text(form, name) for name in SEARCH},
    )


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def _texts(form: FormData, name: str) -> list[str]:
    return [value.strip() for value in form.getlist(name) if isinstance(value, str)]


Sent = Annotated[SweepForm, Depends(sent_form)]
Filled = Annotated[SweepForm, Depends(filled_form)]


@live_page(router, "/sweeps", "sweeps/list.html", "sweep_table", topics=[SWEEPS], swapped="sweep_table")
def list_sweeps(session: SessionDep, actor: Viewer, wanted: Annotated[ListSweeps, Query()]) -> dict[str, object]:
    found = queries.list_sweeps(session, wanted)
    return {"sweeps": found.items, "next": found.next, "after": wanted.after}


@router.get("/sweeps/new", response_class=HTMLResponse)
def new_sweep(request: Request, session: SessionDep, _: ElsewhereTrainer, form: Filled) -> HTMLResponse:
    return page(request, "sweeps/new.html", _form_page(session, form))


@router.post("/sweeps", response_class=HTMLResponse)
def start_sweep(request: Request, session: SessionDep, actor: ElsewhereTrainer, form: Sent) -> Response:
    """Start a sweep. A refused form is shown again with what was typed and an error at each wrong field."""
    try:
        sweep = launch.start_sweep(session, actor, form.request())
    except InvalidInput as error:
        return page(request, "sweeps/new.html", _form_page(session, form, error), status=error.status)
    return see_other(f"/sweeps/{sweep.id}", "The sweep is queued.")


def _form_page(session: Session, form: SweepForm, error: InvalidInput | None = None) -> dict[str, Any]:
    versions = run_versions(session)
    errors = dict(error.fields) if error else {}
    rows = [*form.rows, *(ParameterRow() for _ in range(max(1, ROWS - len(form.rows))))]
    named = {f"parameters.{row.name}" for row in rows}
    at_fields = {"settings", "parameters", "version_id", "name", "without_certificate", "preset", *SEARCH, *named}
    others = {name: text for name, text in errors.items() if name not in at_fields}
    for name in [name for name in others if any(name.startswith(f"{known}.") for known in named)]:
        errors.setdefault(name.rpartition(".")[0], others.pop(name))  # a part of a parameter, such as its limit
    defaults = {name: StartSweep.model_fields[name].default for name in SEARCH}
    return {
        "form": form,
        "versions": versions,
        "presets": PRESETS,
        "rows": rows,
        "settings": list(setting_fields().values()),
        "samplers": [(str(key), text) for key, text in SAMPLERS.items()],
        "pruners": [(str(key), text) for key, text in PRUNERS.items()],
        "search": {
            name: form.search.get(name, "" if value is None else str(value)) for name, value in defaults.items()
        },
        "errors": errors,
        "others": others,
    }


@live_page(router, "/sweeps/{sweep_id}", "sweeps/sweep.html", "sweep_head", "sweep_body", topics=["sweep:{sweep_id}"])
def show_sweep(session: SessionDep, _: Viewer, sweep_id: uuid.UUID) -> dict[str, object]:
    row = queries.get_sweep(session, sweep_id)
    sweep = queries.sweep_detail(session, row)
    space = row.typed_settings.space
    return {
        "row": row,
        "sweep": sweep,
        "space": space,
        "drawing": parallel_coordinates(space, sweep.trials),
        "importance": list((sweep.importance or {}).items()),
        "fewest": FEWEST_FOR_IMPORTANCE,
        "write": write,
        "samplers": SAMPLERS,
        "pruners": PRUNERS,
        "chart": _chart_address(sweep),
        "is_over": sweep.is_finished and all(trial.state.is_over for trial in sweep.trials),
    }


def _chart_address(sweep: SweepDetail) -> str:
    """The chart of all runs, the best first."""
    ranked = sorted(sweep.trials, key=lambda trial: (trial.reward is None, -(trial.reward or 0.0)))
    runs = [("run", str(trial.run_id)) for trial in ranked if trial.run_id]
    return f"/runs/chart?{urlencode([*runs[:MAX_CURVES], ('curve', 'heldout/reward')])}" if runs else ""
