"""Items to share, and what a document must not have."""

import re

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RunKind
from backend.runs.tables import Run
from tests.factories import make_checkpoint, make_environment_version, make_policy, make_rollouts, make_run, random_rows

HOSTILE = "</div><script>alert(1)</script><img src='https://evil.example/x.png'> & friends"


def make_pair(session: Session, **fields: object) -> tuple[Run, Run]:
    """Two evaluations of the same tasks, with hostile replies."""
    version = make_environment_version(session)
    policy = make_policy(session, configuration={"script": "gold"})
    names = ("base model", "trained model")
    runs = tuple(make_run(session, version, policy, name=name) for name in names)
    for seed, run in enumerate(runs):
        said = [{"role": "user", "content": "Board?"}, {"role": "assistant", "content": f"{seed} {HOSTILE}"}]
        make_rollouts(session, run, random_rows(6, seed=seed), messages=said, **fields)
    return runs[0], runs[1]


def make_training(session: Session) -> Run:
    """A training run with held-out evaluations at steps 0 and 5."""
    version = make_environment_version(session)
    policy = make_policy(session)
    run = make_run(session, version, policy, kind=RunKind.TRAINING, name="training", configuration={"seed": 1})
    for step, seed in ((0, 3), (5, 4)):
        make_rollouts(session, run, random_rows(6, seed=seed), phase=Phase.HELDOUT, step=step)
    make_checkpoint(session, policy, run, step=5, is_best=True, heldout={"training_step": 5}, heldout_reward=0.5)
    return run


def refuse_anything_active(html: str) -> None:
    """Fail if a document could execute, send or load something."""
    for name in ("script", "form", "button", "input", "select", "link", "iframe", "object", "base", "use", "nav"):
        assert f"<{name}" not in html, name
    tags = re.findall(r"<[a-zA-Z][^>]*>", html)
    for tag in tags:
        for name, value in re.findall(r"""([\w:-]+)=["']([^"']*)["']""", tag):
            assert not name.startswith(("on", "hx-", "data-href")), tag
            assert name not in {"style", "action", "srcset", "formaction", "xlink:href"}, tag
            assert name != "href" or value.startswith("#"), tag
            assert name != "src" or value.startswith("data:image/"), tag
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def link_to(author: TestClient, kind: str, *items: object, **more: object) -> str:
    """Create a link and return its path."""
    body = {"kind": kind, "item": [str(item) for item in items], **more}
    answer = author.post("/api/v1/shares", json=body)
    assert answer.status_code == 201, answer.text
    link: str = answer.json()["link"]
    return "/shared/" + link.rsplit("/", 1)[1]
