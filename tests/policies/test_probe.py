"""A connection test: each finding states an observation, and the bad ones the next step."""

import asyncio

import pytest

from backend.domain.policies.connections import ConnectionReport
from backend.domain.vocabulary import CheckStatus
from backend.settings import get_settings
from tests.policies.probed import ProbedEndpoint, probed
from workers.policies.probe import probe

KEY = "sk-very-secret-0123456789"


def look(endpoint: ProbedEndpoint, model: str = "small", key: str | None = None) -> ConnectionReport:
    async def main() -> ConnectionReport:
        async with probed(endpoint):
            return await probe(endpoint.url, model, key, {"user": "x"}, request_seconds=2)

    return asyncio.run(main())


def statuses(report: ConnectionReport) -> dict[str, str]:
    return {finding.check: str(finding.status) for finding in report.findings}


def test_an_endpoint_that_takes_everything_passes() -> None:
    endpoint = ProbedEndpoint(key=KEY)
    report = look(endpoint, key=KEY)
    assert report.status is CheckStatus.PASSED
    assert [finding.check for finding in report.findings] == [
        *("reach", "model", "completion", "seed", "tools", "logprobs", "schema")
    ]
    assert report.models == ["large", "small"]
    assert all(body["user"] == "x" for body in endpoint.asked)
    assert all(body["max_tokens"] <= 256 for body in endpoint.asked)


def test_a_wrong_key_is_reported_and_never_repeated() -> None:
    report = look(ProbedEndpoint(key="right"), key=KEY)
    assert statuses(report) == {"reach": "passed", "key": "failed"}
    assert KEY not in report.model_dump_json()
    assert "Enter the key again" in report.findings[-1].advice


def test_a_missing_model_is_reported_with_the_models_there_are() -> None:
    report = look(ProbedEndpoint(), model="huge")
    finding = next(each for each in report.findings if each.check == "model")
    assert finding.status is CheckStatus.WARNED
    assert "large, small" in finding.sentence


def test_an_endpoint_without_a_list_is_still_scanned() -> None:
    report = look(ProbedEndpoint(models=None))
    assert statuses(report)["model"] == "skipped"
    assert statuses(report)["completion"] == "passed"


@pytest.mark.parametrize(
    ("field", "check"), [("seed", "seed"), ("tools", "tools"), ("logprobs", "logprobs"), ("response_format", "schema")]
)
def test_what_is_refused_is_reported_with_what_to_choose(field: str, check: str) -> None:
    report = look(ProbedEndpoint(refuses=frozenset({field})))
    found = next(each for each in report.findings if each.check == check)
    assert found.status is CheckStatus.WARNED
    assert "HTTP 400 (application/json" in found.sentence
    assert "unknown field" not in found.sentence
    assert found.advice
    assert statuses(report)["completion"] == "passed"


@pytest.mark.parametrize(
    ("field", "check"), [("seed", "seed"), ("tools", "tools"), ("logprobs", "logprobs"), ("response_format", "schema")]
)
def test_what_is_taken_but_ignored_is_reported(field: str, check: str) -> None:
    report = look(ProbedEndpoint(ignores=frozenset({field})))
    assert statuses(report)[check] == "warned"


def test_a_limit_by_another_name_is_found() -> None:
    endpoint = ProbedEndpoint(refuses=frozenset({"max_tokens"}))
    assert look(endpoint).status is CheckStatus.PASSED
    assert "max_completion_tokens" in endpoint.asked[-1]


@pytest.mark.parametrize("status", [404, 429, 500])
def test_no_completion_ends_the_scan(status: int) -> None:
    report = look(ProbedEndpoint(status=status))
    assert statuses(report)["completion"] == "failed"
    assert str(status) in report.findings[-1].sentence
    assert report.findings[-1].advice


def test_no_one_there_is_reported() -> None:
    report = asyncio.run(probe("http://127.0.0.1:9/v1", "small", None, {}))
    assert statuses(report) == {"reach": "failed"}
    assert "seen from the worker" in report.findings[0].advice


def test_private_addresses_are_refused_where_they_are_not_allowed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    get_settings.cache_clear()
    request.addfinalizer(get_settings.cache_clear)
    for host in ("127.0.0.1", "localhost", "169.254.169.254"):
        report = asyncio.run(probe(f"http://{host}:9/v1", "small", None, {}))
        assert statuses(report) == {"reach": "failed"}
        assert "does not connect to it" in report.findings[0].sentence
