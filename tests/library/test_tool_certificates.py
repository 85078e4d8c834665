"""Certificates of the packages and the template whose policies call tools."""

import pytest

from backend.environments.library import load_package, render_template
from tests.library.conftest import Serve
from tests.library.test_certificates import certify, not_passed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["flight_desk", "handbook_search", "tool_calling"])
async def test_it_passes_every_check_that_applies(serve: Serve, name: str):
    files = render_template(name, "fresh") if name == "tool_calling" else load_package(name)
    found = not_passed(await certify(serve, files))
    assert {check: result.evidence for check, result in found.items()} == {}
