"""Tools for agents at `/mcp`, used by the official client of the Model Context Protocol."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.skill import read_skill
from backend.policies.tables import Policy
from backend.team.tables import AuditEvent
from tests.operations.conftest import make_token


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[Client]:
    async with (
        httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_tools_are_the_operations_that_the_role_includes(
    served: str, app: FastAPI, session: Session, token: str
) -> None:
    async with connected(served, token) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    create = tools["labels_create"]
    assert create.description is not None
    assert create.description.startswith("Create a label.")
    assert create.input_schema["required"] == ["policy", "text"]
    assert create.input_schema["properties"]["weight"]["maximum"] == 2
    assert create.annotations is not None
    assert not create.annotations.read_only_hint
    assert "labels_delete" not in tools
    async with connected(served, make_token(app, session, Role.VIEWER)) as client:
        visible = {tool.name for tool in (await client.list_tools()).tools}
    assert "labels_list" in visible
    assert "labels_create" not in visible


async def test_a_call_changes_what_the_same_request_would(
    served: str, token: str, policy: Policy, session: Session
) -> None:
    async with connected(served, token) as client:
        result = await client.call_tool("labels_create", {"policy": "tidy", "text": "good", "weight": 0.5})
    assert not result.is_error
    assert json.loads(text_of(result)) == {"id": str(policy.id), "name": "good", "weight": 0.5}
    session.refresh(policy)
    assert policy.description == "good"
    event = session.query(AuditEvent).filter_by(action="label.create").one()
    assert event.detail["by_token"] is True


async def test_a_list_is_read_with_its_filter(served: str, token: str) -> None:
    async with connected(served, token) as client:
        result = await client.call_tool("labels_list", {"at_least": 1.5})
    assert [item["name"] for item in json.loads(text_of(result))["items"]] == ["label3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "tidy"}, "text: Fill this in."),
        ({"text": "good"}, "'policy'"),
        ({"policy": "nothing", "text": "good"}, "There is no policy nothing."),
        ({"policy": "../tidy", "text": "good"}, "There is nothing here."),
        ({"policy": "tidy", "text": "good", "extra": 1}, "extra"),
    ],
)
async def test_bad_input_is_explained_to_the_agent(
    served: str, token: str, policy: Policy, arguments: dict[str, object], message: str
) -> None:
    async with connected(served, token) as client:
        result = await client.call_tool("labels_create", arguments)
    assert result.is_error
    assert message in text_of(result)


@pytest.mark.slow
async def test_a_read_only_token_reads_but_changes_nothing(
    served: str, app: FastAPI, session: Session, policy: Policy
) -> None:
    token = make_token(app, session, Role.TRAINER, is_read_only=True)
    async with connected(served, token) as client:
        assert not (await client.call_tool("labels_list", {})).is_error
        result = await client.call_tool("labels_create", {"policy": "tidy", "text": "good"})
    assert result.is_error
    assert "read-only" in text_of(result)
    assert policy.description == ""


def test_strangers_and_browsers_are_refused(stranger: TestClient, admin: TestClient) -> None:
    assert stranger.post("/mcp", json={}).status_code == 401
    assert admin.post("/mcp", json={}).status_code == 403


@pytest.mark.slow
async def test_the_command_serves_the_same_tools_over_standard_input(served: str, token: str, policy: Policy) -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "backend.cli", "mcp"],
        env={**os.environ, "PROCTOR_URL": served, "PROCTOR_TOKEN": token},  # noqa: TID251
    )
    async with Client(command, read_timeout_seconds=60) as client:
        assert "labels_create" in {tool.name for tool in (await client.list_tools()).tools}
        assert client.instructions == read_skill()
        made = await client.call_tool("labels_create", {"policy": "tidy", "text": "good"})
        refused = await client.call_tool("labels_create", {"policy": "nothing", "text": "good"})
    assert json.loads(text_of(made))["name"] == "good"
    assert policy.description == "good"
    assert refused.is_error
    assert "There is no policy nothing." in text_of(refused)
