"""A manifest that is wrong is refused with its key and line; nothing is published and what was typed is kept."""

import pytest
from fastapi.testclient import TestClient

from tests.envhost_fixture import package_files
from tests.proof.conftest import NAME, asked, seen

WRONG = {
    "unknown key": ("rewards:", "prizes: 1\n  rewards:", 7, "proctor.prizes", "unknown key"),
    "wrong type": ("gain: 1.0", "gain: much", 7, "proctor.rewards.gain.weight", "valid number"),
    "template": ("  agent:", "  agent:\n    observation: '{{ total'", 6, "proctor.agent.observation", "end of"),
    "template's field": ("  agent:", "  agent:\n    observation: '{{ sum }}'", 6, "proctor.agent.observation", "`sum`"),
    "action's field": ("field: amount", "field: amuont", 6, "proctor.agent.action.field", "`amuont`"),
    "not YAML": ("rewards: {", "rewards: [", 7, "", "not YAML"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_manifest(ada: TestClient, what: str) -> None:
    old, new, line, key, words = WRONG[what]
    files = package_files(NAME)
    files["openenv.yaml"] = files["openenv.yaml"].replace(old, new, 1)
    asked(ada.post("/api/v1/environments", json={"name": NAME, "files": files}))

    refused = ada.post(f"/api/v1/environments/{NAME}/publish", json={"revision": 1})

    assert refused.status_code == 422
    assert words in refused.json()["detail"]
    [problem] = asked(ada.get(f"/api/v1/environments/{NAME}/draft"))["validation"]["problems"]
    assert (problem["path"], problem["line"], problem["key"]) == ("openenv.yaml", line, key)
    assert words in problem["message"]
    page = seen(ada, f"/environments/{NAME}/edit")
    assert problem["message"] in page
    assert asked(ada.get(f"/api/v1/environments/{NAME}/versions"))["items"] == []
    assert asked(ada.get(f"/api/v1/environments/{NAME}/draft"))["files"] == files
