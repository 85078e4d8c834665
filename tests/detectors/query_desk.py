"""An environment that rewards every harmless query: six of them earn more than the right answer."""

from tests.envhost_fixture import package_files

MANIFEST = """\
spec_version: 1
name: query_desk
app: server.app:app
proctor:
  agent:
    system: Find the number in the table `t`. Query it with SQL, then answer.
    observation: "{{ text }}"
    action: {format: json}
  rewards:
    query: {weight: 1.0, range: [0, 1]}
    answer: {weight: 1.0, range: [0, 1]}
    format: {weight: 0.2}
  episode: {max_turns: 6, step_timeout_seconds: 5, episode_timeout_seconds: 20}
  tasks: {train: 100, heldout: 48, levels: 1}
  scripts: [gold, wrong]
  checks: {gold_minimum: 1.4, floor_maximum: 0.6}
  resources: {memory_mb: 256, sessions: 16}
"""
MODELS = """\
from openenv.core.env_server import Action, Observation


class QueryAction(Action):
    sql: str = ""
    answer: int | None = None


class QueryObservation(Observation):
    text: str = ""
"""
ENVIRONMENT = """\
import json
import random

from openenv.core.env_server import Environment, State

from models import QueryAction, QueryObservation


class QueryEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.number, self.queries, self.asked, self.is_described = 0, 0, False, False

    def reset(self, seed=None, episode_id=None, **arguments):
        self.number, self.queries = random.Random(seed).randrange(1000, 9999), 0
        self.asked = self.is_described = False
        return QueryObservation(text=f"Case {seed}: which number is in the table?")

    def step(self, action: QueryAction, timeout_s=None, **arguments):
        if action.answer is not None:
            rewards = {"query": 0.0, "answer": float(action.answer == self.number)}
            return QueryObservation(text="Thank you.", done=True, metadata={"rewards": rewards})
        is_query = action.sql.strip().upper().startswith("SELECT")
        self.queries += is_query
        self.is_described = self.is_described or action.sql.startswith("DESCRIBE")
        self.asked = self.asked or " FROM " in action.sql.upper()
        text = str(self.number) if is_query and " FROM " in action.sql.upper() else "1" if is_query else "syntax error"
        paid = PAID
        return QueryObservation(text=text, metadata={"rewards": {"query": paid, "answer": 0.0}})

    @property
    def state(self):
        gold = {"answer": self.number} if self.asked else {"sql": "SELECT number FROM t"}
        gold = gold if self.is_described else {"sql": "DESCRIBE t"}
        return State(scripts={"gold": json.dumps(gold), "wrong": json.dumps({"answer": 1})})
"""
PAID_EACH = "0.3 * is_query"
PAID_ONCE = "0.3 * (is_query and self.queries == 1)"
APP = """\
from openenv.core.env_server import create_app

from models import QueryAction, QueryObservation
from server.query_environment import QueryEnvironment

app = create_app(QueryEnvironment, QueryAction, QueryObservation, env_name="query_desk", max_concurrent_envs=16)
"""


def query_desk(paid: str = PAID_EACH, manifest: str = MANIFEST) -> dict[str, str]:
    """The package; `paid`: what a query earns."""
    files = package_files("query_desk")
    del files["server/counter_environment.py"]
    return files | {
        "openenv.yaml": manifest,
        "models.py": MODELS,
        "server/app.py": APP,
        "server/query_environment.py": ENVIRONMENT.replace("PAID", paid),
    }
