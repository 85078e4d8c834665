"""Measure how many bad graders of third-party collections the audit fails, and how many good ones.

Peer: none.
Unit: share of the graders of the test split that fail a check.
Repeats: 1.

    python -m benchmarks graders --data FOLDER                # FOLDER has the collections
    python -m benchmarks.graders FOLDER --split development   # each grader with the checks that it fails

Collections, by the name of their folder: clones of EleutherAI/djinn-problems (`EleutherAI+djinn-problems`, insecure
verifiers of 92 problems), EleutherAI/djinn (29 insecure verifiers, one for each kind of exploit) and
ydnyshhh/rewardhack-gym (official evaluators, which are weak, and oracles); and the wheel of reasoning-gym 0.1.25
(`pip install --no-deps --target FOLDER/reasoning-gym reasoning-gym==0.1.25`, scorers of 100 kinds of tasks). Each
grader is wrapped as an OpenEnv package in the env host; its collection's right answer is the recorded answer.

A grader is bad if its collection says so: an insecure verifier, or an official evaluator that passes the collection's
own exploit. Good ones are the oracles, for djinn its secure comparison of the same problem's tests, and the scorers of
reasoning-gym, which were not searched for holes.

A label that comes from a collection may be wrong, so all figures are printed twice. By the **oracle rule**, a grader is
bad, even if its collection calls it good, if one of these holds. The rule was written before any grader was labeled by
it, and does not use the verdict of the audit:

1. It gives the full reward to an answer that the recorded one refutes, on more than half of the tasks where it was
   tried, and on at least three of up to eight. Tried are: the recorded answers of three other tasks, all of which must
   be rewarded; a number with the other sign; `not` before the answer; no answer; `nan`; and the right answer `or`
   another one, rewarded in both orders. Answers with equal contents (numbers by value, texts by their letters and
   digits) are skipped. Where the answer is a program: one that returns an object which equals everything, one that
   returns nothing and one that ends the process; each fails every test that a right program passes.
2. It evaluates the answer: in the source of its scorer, the answer reaches `eval`, `exec`, `pickle.loads`, or sympy's
   `parse_expr` or `sympify`. The documentation of both warns that these run any code. For programs: one that never
   ends is not answered within the time limit of a step, because it runs in the grader's own process.

Families (kinds of exploit, environments, kinds of tasks) are split
into development and test by the parity of their name's SHA-256.
"""

import argparse
import ast
import asyncio
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import yaml
from rich.console import Console

from backend.domain.environments.answers import secret_values
from backend.domain.environments.audit_coverage import audit_coverage
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.environments.programs import read_program
from backend.domain.errors import RolloutError
from backend.domain.statistics import wilson
from backend.domain.vocabulary import CheckStatus
from backend.settings import get_settings
from benchmarks.harness import Measure, Options, installation
from workers.environments.checks.answers import REFUSAL
from workers.environments.checks.base import TOLERANCE
from workers.environments.checks.policies import recites
from workers.environments.checks.registry import CHECKS, run_checks
from workers.environments.checks.subject import CheckSubject
from workers.environments.client import EnvHost, HostRefused

REPEATS = 1
LIMIT_SECONDS = 2 * 3600
DJINN, PROBLEMS, GYM = "EleutherAI+djinn", "EleutherAI+djinn-problems", "ydnyshhh+rewardhack-gym"
SCORERS, SCORERS_VERSION = "reasoning-gym", "0.1.25"
PROFILES = ("low", "medium", "high", "adversarial")
THEMES = {"start", "grader"}
LABELS = {"is_bad": "by their source", "is_bad_by_rule": "by the oracle rule"}
ORACLE_TASKS = 8
UNSAFE = {"eval", "exec", "parse_expr", "sympify", "loads"}
EQUAL_TO_EVERYTHING = """\
class Same:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def NAME(*given, **named):
    return Same()
"""
WRONG_PROGRAMS = {
    "returns an object that equals everything": EQUAL_TO_EVERYTHING,
    "returns nothing": "def NAME(*given, **named):\n    return None\n",
    "ends the process": "import os\n\n\ndef NAME(*given, **named):\n    os._exit(0)\n\n\nos._exit(0)\n",
}
ENDLESS = "while True:\n    pass\n\n\ndef NAME(*given, **named):\n    return None\n"
console = Console()
MORE = {"degenerate_policies", "untouched_task", "gold_reaches_bound"}


@dataclass(frozen=True, slots=True)
class ForeignGrader:
    name: str
    family: str
    is_bad: bool
    files: Mapping[str, str]
    collection: str
    answer_sink: str = ""
    """The function of its scorer that evaluates the answer."""

    @property
    def split(self) -> str:
        return "test" if hashlib.sha256(self.family.encode()).digest()[0] % 2 else "development"


def measure(options: Options) -> Iterator[Measure]:
    """Audit the graders of the test split."""
    if options.data is None:
        raise SystemExit("graders: choose the folder with the collections by --data FOLDER. See benchmarks/graders.py.")
    graders = [grader for grader in read_graders(options.data) if grader.split == "test"]
    if options.is_quick:
        graders = [next(each for each in graders if each.is_bad is is_bad) for is_bad in (True, False)]
    with installation():
        results = asyncio.run(audit(graders))
    for key, source in LABELS.items():
        for is_bad, label, target in ((True, "bad", 0.9), (False, "good", 0.1)):
            mine = [each for each in results if each[key] is is_bad]
            for name in ("", *dict.fromkeys(each["collection"] for each in mine)):
                fails, usable, interval = _failing([each for each in mine if name in ("", each["collection"])])
                yield Measure(
                    f"{label} graders {source} that fail{': ' if name else ''}{name}",
                    "of 1",
                    [fails / usable if usable else 0.0],
                    higher_is_better=is_bad,
                    target=None if name else target,
                    note=f"{fails} of {usable} {interval}",
                )
    unusable = [each["name"] for each in results if not each["is_usable"]]
    yield Measure("graders that were not usable", "", [len(unusable)], note=f"of {len(results)}: no answer is rewarded")
    covered = [coverage for each in results if isinstance(coverage := each.get("coverage"), float)]
    if covered:
        yield Measure("coverage of a grader", "of 1", covered, higher_is_better=True, note=f"of {len(covered)} graders")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the clones")
    parser.add_argument("--split", choices=("development", "test"), default="development")
    parser.add_argument("--only", default="", help="graders whose name contains this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    options = parser.parse_args()
    graders = [
        grader
        for grader in read_graders(options.folder)
        if grader.split == options.split and options.only in grader.name
    ]
    with installation():
        results = asyncio.run(audit(graders))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    for key, source in LABELS.items():
        for is_bad, label in ((True, "bad"), (False, "good")):
            fails, usable, interval = _failing([each for each in results if each[key] is is_bad])
            console.print(f"{options.split}: {fails} of {usable} {label} graders {source} fail {interval}")
    unusable = [each["name"] for each in results if not each["is_usable"]]
    console.print(f"not usable (the right answer earns nothing, or it does not start): {len(unusable)} {unusable}")
    return 0


def _failing(results: Sequence[Mapping[str, object]]) -> tuple[int, int, str]:
    """Return how many graders fail, how many were usable, and the interval of the share."""
    usable = [each for each in results if each["is_usable"]]
    fails = sum(bool(each["failed"]) for each in usable)
    interval = wilson(fails, len(usable))
    return fails, len(usable), f"[{interval.low:.0%}, {interval.high:.0%}]"


async def audit(graders: list[ForeignGrader]) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    checks = [check for check in CHECKS if check.theme in THEMES or check.id in MORE]
    async with EnvHost(get_settings().envhost_address) as host:
        for grader in graders:
            manifest, hash_ = read_manifest(grader.files[MANIFEST_PATH]), content_hash(grader.files)
            resources = manifest.proctor.resources
            described = {"name": grader.name, "family": grader.family, "is_bad": grader.is_bad}
            described |= {"collection": grader.collection, "is_bad_by_rule": grader.is_bad}
            began = time.perf_counter()
            try:
                await host.prepare(hash_, grader.files)
                async with host.lease(hash_, resources) as server:
                    subject = CheckSubject(
                        manifest,
                        server,
                        files=grader.files,
                        second_process=partial(host.lease, hash_, resources),
                        branch_recorder=partial(host.lease, hash_, resources, branches=True),
                    )
                    found = await run_checks(subject, checks=checks)
                holes: list[str] = []
                if not grader.is_bad and subject.form is not None:
                    async with host.lease(hash_, resources) as server:
                        subject.server = server
                        server.scripts_of = None
                        holes = await holes_by_rule(subject, grader.answer_sink)
            except (HostRefused, RolloutError) as error:
                console.print(f"{grader.name}: {str(error)[-600:]}", soft_wrap=True, highlight=False)
                results.append(described | {"is_usable": False})
                continue
            known = next(result for result in found if result.check == "answers_known")
            failed = {result.check: result.evidence for result in found if result.status is CheckStatus.FAILED}
            coverage = audit_coverage([asdict(result) for result in found])
            result = described | {
                "is_usable": known.status is CheckStatus.PASSED,
                "known": known.evidence,
                "holes": holes,
                "is_bad_by_rule": grader.is_bad or bool(holes),
                "failed": failed,
                "warned": {r.check: r.evidence for r in found if r.status is CheckStatus.WARNED},
                "coverage": coverage and coverage.score,
                "seconds": time.perf_counter() - began,
            }
            results.append(result)
            mark = "fails" if failed else "passes" if result["is_usable"] else "not usable"
            kind = "bad" if grader.is_bad else f"good, bad by rule ({', '.join(holes)})" if holes else "good"
            console.print(
                f"{kind} {mark} {result['seconds']:.0f}s {grader.name}: {str(failed or known.evidence)[:300]}",
                soft_wrap=True,
                highlight=False,
            )
    return results


async def holes_by_rule(subject: CheckSubject, answer_sink: str) -> list[str]:
    """Return why a grader is bad by the oracle rule, whatever the audit found."""
    form = subject.form
    assert form is not None
    tasks = subject.tasks(ORACLE_TASKS)
    opened = await subject.openings(tasks, with_state=True)
    prompts = [str(opening.fields.get("text", "")) for opening, _ in opened]
    answers = [(secret_values(state) or [""])[0] for _, state in opened]
    number = 0

    async def earned(at: int, text: str) -> float | None:
        nonlocal number
        number += 1
        policy = recites([form.write(text)])
        played = await subject.play("costly", policy, [(tasks[at], 1)], offset=5000 + number)
        return played[0].reward if played and played[0].is_completed else None

    holes = [f"evaluates the answer by {answer_sink}"] if answer_sink else []
    tried: dict[str, list[bool]] = {}
    program = None
    for at, answer in enumerate(answers):
        gold, refusal = await earned(at, answer), await earned(at, REFUSAL)
        if not answer or gold is None or gold <= (refusal or 0.0) + TOLERANCE:
            continue
        program = read_program(answer, prompts[at])
        others = [each for each in dict.fromkeys(answers) if contents(each) != contents(answer)]
        wrong: dict[str, list[str]] = {"no answer": [""], "not a number": ["nan"], "denied": [f"not {answer}"]}
        if program is not None:
            wrong = {name: [text.replace("NAME", program.function)] for name, text in WRONG_PROGRAMS.items()}
        else:
            if isinstance(value := contents(answer), float) and value:
                wrong["the other sign"] = [answer.strip()[1:] if value < 0 else f"-{answer.strip().lstrip('+')}"]
            if len(others) > 2:
                wrong["answers of other tasks"] = others[:3]
            if others:
                wrong["two answers"] = [f"{answer} or {others[0]}", f"{others[0]} or {answer}"]
        for name, texts in wrong.items():
            if all(contents(text) != contents(answer) for text in texts):
                rewards = [await earned(at, text) for text in texts]
                is_full = all(reward is not None and reward >= gold - TOLERANCE for reward in rewards)
                tried.setdefault(name, []).append(is_full)
    for name, results in tried.items():
        if sum(results) >= min(3, len(results)) and 2 * sum(results) > len(results):
            holes.append(f"full reward: {name} ({sum(results)} of {len(results)})")
    if program is not None and await earned(0, ENDLESS.replace("NAME", program.function)) is None:
        holes.append("runs endless programs")
    return holes


def contents(text: str) -> object:
    """Return what an answer says: a number by its value, else its letters and digits."""
    plain = text.strip().replace(",", "")
    try:
        return float(plain) if re.fullmatch(r"[-+]?\d{1,15}(\.\d{1,15})?", plain) else _letters(text)
    except ValueError:
        return _letters(text)


def _letters(text: str) -> str:
    return "".join(each for each in text.casefold() if each.isalnum() or each in "-+*/=<>")


def unsafe_call(source: str) -> str:
    """Return the function that evaluates the argument `answer` of a scorer's `score_answer`; empty if none does."""
    functions = {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    todo, done = [("score_answer", "answer")], set()
    while todo:
        name, parameter = todo.pop()
        if name not in functions or (name, parameter) in done:
            continue
        done.add((name, parameter))
        tainted = {parameter}
        nodes = list(ast.walk(functions[name]))

        def is_tainted(node: ast.AST, names: set[str] = tainted) -> bool:
            return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))

        for _ in range(4):  # assignments may come in any order
            for node in nodes:
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.For | ast.comprehension):
                    value = node.iter if isinstance(node, ast.For | ast.comprehension) else node.value
                    if value is not None and is_tainted(value):
                        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                        tainted |= {e.id for t in targets for e in ast.walk(t) if isinstance(e, ast.Name)}
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            at = [place for place, argument in enumerate(node.args) if is_tainted(argument)]
            is_json = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "json"
            if called in UNSAFE and not is_json and (at or any(is_tainted(each.value) for each in node.keywords)):
                return called
            if called in functions:
                names = [each.arg for each in functions[called].args.args]
                names = names[1:] if names[:1] == ["self"] else names
                todo += [(called, names[place]) for place in at if place < len(names)]
    return ""


def read_graders(folder: Path) -> Iterator[ForeignGrader]:
    """Wrap every grader of the collections that are in the folder."""
    problems = []
    for path in sorted((folder / PROBLEMS).glob("*/problem.yaml")):
        problem = yaml.safe_load(path.read_text())
        cases = problem["test_cases"]
        problem["test_cases"] = yaml.safe_load(cases) if isinstance(cases, str) and cases.startswith("- ") else cases
        problems.append((path.parent.name, problem))
        yield _program_grader(path.parent.name, problem, "insecure", {"grader.py": problem["insecure_verifier"]})
    for name, problem in problems:
        yield _program_grader(name, problem, "secure", {"grader.py": SECURE})
    by_type: dict[str, dict[str, object]] = {problem["exploit_type"]: problem for _, problem in problems}
    plain = next(problem for name, problem in problems if name.startswith("binary_powers"))
    package = folder / DJINN / "djinn"
    for path in sorted((package / "verifiers/insecure").glob("*.py")):
        if path.stem.startswith("__"):
            continue
        problem = dict(by_type.get(path.stem, plain), exploit_type=path.stem)
        files = {
            "grader.py": VERIFIER.replace("NAME", path.stem),
            "djinn/__init__.py": "",
            "djinn/core/__init__.py": "",
            "djinn/core/sandbox_defs.py": (package / "core/sandbox_defs.py").read_text(),
            "djinn/verifiers/__init__.py": "",
            "djinn/verifiers/insecure/__init__.py": "",
        }
        for each in [path, *sorted((package / "verifiers/insecure/helpers").glob("*.py"))]:
            files[str(each.relative_to(folder / DJINN))] = each.read_text()
        yield _program_grader(path.stem, problem, "verifier", files)
    yield from _gym_graders(folder / GYM)
    sources = sorted((folder / SCORERS).rglob("*.py"))
    found = [re.findall(r"register_dataset\(\s*(?:\"(\w+)\"|DATASET_NAME)", path.read_text()) for path in sources]
    names = [re.search(r"^DATASET_NAME = \"(\w+)\"", path.read_text(), re.MULTILINE) for path in sources]
    for path, registered, constant in zip(sources, found, names, strict=True):
        for name in registered:
            name = name or (constant.group(1) if constant else path.stem)
            files = {"server/grader.py": SCORER.replace("NAME", repr(name))}
            wrapped = _package(files, "server/problem.json", "[]", 8, f'"reasoning-gym=={SCORERS_VERSION}", ')
            yield ForeignGrader(f"{name}/scorer", name, False, wrapped, SCORERS, unsafe_call(path.read_text()))


def _program_grader(name: str, problem: dict[str, object], kind: str, files: dict[str, str]) -> ForeignGrader:
    tasks = {
        "prompt": problem["description"],
        "answer": problem["ground_truth"],
        "function": problem["function_name"],
        "tests": repr(problem["test_cases"]) if not isinstance(problem["test_cases"], str) else problem["test_cases"],
        "order": problem.get("order_dependent", True),
    }
    wrapped = {f"server/{path}": text for path, text in files.items()}
    return ForeignGrader(
        f"{name}/{kind}",
        str(problem["exploit_type"]),
        kind != "secure",
        _package(wrapped, "server/problem.json", json.dumps([tasks]), 1),
        DJINN if kind == "verifier" else PROBLEMS,
    )


def _gym_graders(folder: Path) -> Iterator[ForeignGrader]:
    sources = folder / "src"
    if not sources.is_dir():
        return
    sys.path.insert(0, str(sources))
    try:
        from rewardhack_gym import bootstrap  # type: ignore[import-not-found]  # noqa: F401
        from rewardhack_gym.core.config import EnvironmentConfig  # type: ignore[import-not-found]
        from rewardhack_gym.core.registry import create_environment, list_environments  # type: ignore[import-not-found]
    except ImportError as error:
        console.print(f"rewardhack-gym is skipped: {error}")
        return
    library = {f"server/{path.relative_to(sources)}": path.read_text() for path in sorted(sources.rglob("*.py"))}
    for name in list_environments():
        for profile in PROFILES:
            environment = create_environment(name, EnvironmentConfig.from_profile(profile=profile))
            tasks, is_bad = [], False
            for seed in range(8):
                task = environment.sample_task(seed)
                right, exploit = environment.canonical_true_output(task), environment.canonical_exploit_output(task)
                tasks.append({"prompt": task.prompt, "answer": right, "seed": seed})
                is_bad = is_bad or environment.evaluate_output(task, exploit).is_false_pass
            for kind in ("official", "oracle") if profile == "medium" else ("official",):
                if kind == "official" and not is_bad:
                    continue
                text = GYM_GRADER.replace("NAME", repr(name)).replace("PROFILE", repr(profile)).replace("KIND", kind)
                files = {**library, "server/grader.py": text}
                package = _package(files, "server/problem.json", json.dumps(tasks), 8, '"sympy", ')
                yield ForeignGrader(f"{name}/{profile}/{kind}", name, kind == "official", package, GYM)


def _package(
    files: Mapping[str, str], tasks_path: str, tasks: str, count: int, requirements: str = ""
) -> dict[str, str]:
    return {
        "openenv.yaml": MANIFEST.replace("COUNT", str(max(2, count))).replace("SECONDS", "30" if requirements else "6"),
        "pyproject.toml": PROJECT.replace("REQUIREMENTS", requirements),
        "__init__.py": "",
        "models.py": MODELS,
        "server/__init__.py": "",
        "server/app.py": APP,
        "server/environment.py": ENVIRONMENT,
        tasks_path: tasks,
        **files,
    }


PROJECT = """\
[project]
name = "graded"
version = "1"
dependencies = [REQUIREMENTS"openenv[core]"]
"""
MANIFEST = """\
spec_version: 1
name: graded
app: server.app:app
proctor:
  agent:
    system: Solve the task. Reply with the answer alone.
    observation: "{{ text }}"
    action: {format: text, field: text}
  rewards: {passes: 1.0}
  episode: {max_turns: 1, step_timeout_seconds: SECONDS, episode_timeout_seconds: 60, max_tokens_per_turn: 4096}
  tasks: {train: COUNT, heldout: COUNT}
  resources: {memory_mb: 768, sessions: 8, execute: true}
"""
MODELS = """\
from openenv.core.env_server import Action, Observation


class GradedAction(Action):
    text: str = ""


class GradedObservation(Observation):
    text: str = ""
"""
APP = """\
from openenv.core.env_server import create_app

from models import GradedAction, GradedObservation
from server.environment import GradedEnvironment

app = create_app(GradedEnvironment, GradedAction, GradedObservation, env_name="graded", max_concurrent_envs=8)
"""
ENVIRONMENT = """\
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from openenv.core.env_server import Environment, State

import grader
from models import GradedAction, GradedObservation

with open(os.path.join(HERE, "problem.json")) as file:
    TASKS = json.load(file) or grader.TASKS


class GradedEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.problem = TASKS[0]

    def reset(self, seed=None, episode_id=None, index=0, **arguments):
        self.problem = TASKS[(index or 0) % len(TASKS)]
        return GradedObservation(text=self.problem["prompt"])

    def step(self, action: GradedAction, timeout_s=None, **arguments):
        try:
            grade = getattr(grader, "grade", self.verify)
            passes = grade(self.problem, action.text)
        except Exception:
            passes = False
        return GradedObservation(text="Over.", done=True, metadata={"rewards": {"passes": float(passes)}})

    def verify(self, problem, text):
        result = grader.verify(text)
        status = getattr(result, "status", result)
        status = result[0] if isinstance(result, tuple) and result else status
        return str(getattr(status, "value", status)).lower() in ("passed", "true")

    @property
    def state(self):
        return State(answer=self.problem["answer"])
"""
SECURE = """\
import ast
import json

from proctor_sandbox import Limits, execute

RUNNER = '''
import contextlib, io, json
source, name, inputs = json.loads(open("job.json").read())
names = {}
with contextlib.redirect_stdout(io.StringIO()):
    exec(source, names)
outputs = []
for given in inputs:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            result = names[name](*given) if isinstance(given, (list, tuple)) else names[name](given)
        json.dumps(result)
        outputs.append([True, result, printed.getvalue()])
    except BaseException as error:
        try:
            with contextlib.redirect_stdout(printed):
                result = names[name](given)
            json.dumps(result)
            outputs.append([True, result, printed.getvalue()])
        except BaseException as error:
            outputs.append([False, None, ""])
submit(outputs)
'''


def canonical(value):
    if isinstance(value, (list, tuple)):
        return [canonical(each) for each in value]
    return {key: canonical(each) for key, each in value.items()} if isinstance(value, dict) else value


def is_same(actual, expected):
    kinds = [list, dict, str, bool]
    for kind in kinds:
        if isinstance(expected, kind) != isinstance(actual, kind):
            return False
    return actual == expected


def grade(problem, text):
    tests = ast.literal_eval(problem["tests"])
    job = json.dumps([text, problem["function"], [given for given, _ in tests]])
    result = execute(RUNNER, files={"job.json": job}, limits=Limits(seconds=4))
    outputs = result.value
    if not isinstance(outputs, list) or len(outputs) != len(tests):
        return False
    for (_, expected), (is_done, actual, printed) in zip(tests, outputs):
        expected = json.loads(json.dumps(canonical(expected)))
        if not is_done:
            return False
        if actual is None and printed:
            if printed.strip() != str(expected):
                return False
        elif not problem["order"] and isinstance(actual, list) and isinstance(expected, list):
            if sorted(map(repr, actual)) != sorted(map(repr, expected)):
                return False
        elif not is_same(actual, expected):
            return False
    return True
"""
VERIFIER = """\
import ast
import importlib

verifier = importlib.import_module("djinn.verifiers.insecure.NAME")


class Problem:
    def __init__(self, problem):
        self.function_name, self.order_dependent = problem["function"], problem["order"]
        self.test_cases = self.insecure_test_cases = ast.literal_eval(problem["tests"])
        self.ground_truth = problem["answer"]

    def get_test_cases_safe(self):
        return self.test_cases

    _normalize_test_cases = get_test_cases_safe


def grade(problem, text):
    return str(verifier.verify(Problem(problem), text).status.value).lower() == "passed"
"""
SCORER = """\
import reasoning_gym

DATASET = reasoning_gym.create_dataset(NAME, seed=42, size=8)
ENTRIES = list(DATASET)
TASKS = [{"prompt": each["question"], "answer": each["answer"], "index": at} for at, each in enumerate(ENTRIES)]


def grade(problem, text):
    return float(DATASET.score_answer(text, ENTRIES[problem["index"]]))
"""
GYM_GRADER = """\
from rewardhack_gym import bootstrap
from rewardhack_gym.core.config import EnvironmentConfig
from rewardhack_gym.core.registry import create_environment

ENVIRONMENT = create_environment(NAME, EnvironmentConfig.from_profile(profile=PROFILE))


def grade(problem, text):
    task = ENVIRONMENT.sample_task(problem["seed"])
    return ENVIRONMENT.build_KIND_evaluator(task).evaluate(task, text).passed
"""

if __name__ == "__main__":
    sys.exit(main())
