"""Messages for Slack and Discord: the shapes that they document, their limits, and nothing that text can do there."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from backend.domain.notifications.chat import ChatNotice, WebhookFormat, cut, discord_payload, slack_payload
from backend.notifications.schemas import DestinationRequest

RECORDED = Path(__file__).parent / "recorded"
HOSTILE = (
    "@everyone <!channel> <@U1> <https://evil.example|click> [click](https://evil.example) https://evil.example "
    "&amp; *bold* `code` ~~x~~ ||spoiler|| > quote\n# head www.evil.example mailto:a@evil.example <#1> <@&2>"
)


def _notice(**fields: Any) -> ChatNotice:
    values: dict[str, Any] = {
        "title": "maze: run 7 is paused",
        "text": "The reward jumped.",
        "label": "Alarm",
        "url": "https://proctor.example.org/runs/1/alarms",
        "created_at": datetime(2026, 11, 29, 8, tzinfo=UTC),
        "run": ("run 7", "https://proctor.example.org/runs/1"),
        "examples": ["https://proctor.example.org/rollouts/1", "https://proctor.example.org/rollouts/2"],
    }
    return ChatNotice(**values | fields)


def _texts(value: object) -> list[str]:
    """All strings in it, without addresses of buttons and embeds."""
    match value:
        case str():
            return [value]
        case list():
            return [text for each in value for text in _texts(each)]
        case dict():
            return [text for key, each in value.items() if key != "url" for text in _texts(each)]
    return []


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _schema(name: str) -> Draft202012Validator:
    schema = json.loads((RECORDED / f"{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


SCHEMAS = {name: _schema(name) for name in ("slack", "discord")}
"""Written from the documentation of Slack and of Discord; each names its source."""


@pytest.mark.parametrize(("name", "build"), [("slack", slack_payload), ("discord", discord_payload)])
def test_a_notice_has_the_recorded_shape(name: str, build: Any) -> None:
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    assert build(_notice()) == recorded
    SCHEMAS[name].validate(recorded)
    SCHEMAS[name].validate(build(_notice(run=None, examples=[])))


HEADING = {"type": "header", "text": {"type": "plain_text", "text": "A Heartfelt Header"}}
EMBED = {"title": "Hello, Embed!", "description": "This is an embedded message."}


@pytest.mark.parametrize(
    ("name", "payload", "is_valid"),
    [
        ("slack", {"text": "Hello, world."}, True),  # as documented
        ("slack", {"blocks": [HEADING]}, True),
        (
            "slack",
            {"blocks": [{"type": "context", "elements": [{"type": "mrkdwn", "text": "Location: *Dogpatch*"}]}]},
            True,
        ),
        ("slack", {"blocks": [HEADING | {"text": {"type": "mrkdwn", "text": "no"}}]}, False),
        ("slack", {"blocks": [HEADING] * 51}, False),
        ("slack", {"blocks": [{"type": "section", "text": {"type": "plain_text", "text": ""}}]}, False),
        ("slack", {"blocks": [{"type": "actions", "elements": []}]}, False),
        ("slack", {"unfurl_links": False}, False),
        ("discord", {"content": "Hello, World!", "tts": False, "embeds": [EMBED]}, True),
        ("discord", {"embeds": [EMBED | {"fields": [{"name": "Run", "value": ""}]}]}, False),
        ("discord", {"embeds": [EMBED | {"link": "https://example.org"}]}, False),
        ("discord", {"embeds": [EMBED | {"timestamp": 1764400000}]}, False),
        ("discord", {"embeds": [EMBED], "allowed_mentions": {"parse": ["here"]}}, False),
    ],
)
def test_the_schemas_accept_documented_examples_and_refuse_mistakes(
    name: str, payload: dict[str, Any], is_valid: bool
) -> None:
    assert SCHEMAS[name].is_valid(payload) is is_valid


@pytest.mark.parametrize("size", [10, 149, 3_000, 20_000])
@pytest.mark.parametrize("letter", ["a", "<", "@", "*", "😀", "&"])
def test_messages_keep_the_limits(size: int, letter: str) -> None:
    long = letter * size
    notice = _notice(title=long, text=long, run=(long, "https://proctor.example.org/runs/1"))
    for name, build in (("slack", slack_payload), ("discord", discord_payload)):
        SCHEMAS[name].validate(build(notice))
    slack: Any = slack_payload(notice)
    header, section, context, actions = slack["blocks"]
    assert 0 < _units(header["text"]["text"]) <= 150
    assert 0 < _units(section["text"]["text"]) <= 3000
    assert all(0 < _units(each["text"]) <= 3000 for each in context["elements"])
    assert all(_units(each["text"]["text"]) <= 75 for each in actions["elements"])
    assert len(actions["elements"]) <= 25
    assert not re.search(r"&[a-z]*…$", slack["text"])
    (embed,) = (discord := discord_payload(notice))["embeds"]  # type: ignore[misc]
    assert discord["allowed_mentions"] == {"parse": []}
    assert 0 < _units(embed["title"]) <= 256
    assert 0 < _units(embed["description"]) <= 4096
    assert all(_units(each["name"]) <= 256 and _units(each["value"]) <= 1024 for each in embed["fields"])
    assert _units(embed["footer"]["text"]) <= 2048
    fields = [text for each in embed["fields"] for text in (each["name"], each["value"])]
    assert sum(map(_units, (embed["title"], embed["description"], embed["footer"]["text"], *fields))) <= 6000


def test_text_of_models_mentions_nobody_and_links_nowhere() -> None:
    notice = _notice(title=HOSTILE, text=HOSTILE, run=(HOSTILE, "https://proctor.example.org/runs/1"), examples=[])
    for payload in (slack_payload(notice), discord_payload(notice)):
        for text in _texts(payload):
            assert "evil" not in text or not re.search(r"https?://|mailto:a|www\.", text), text
            assert not re.search(r"@\w|@&", text), text
    slack: Any = slack_payload(notice)
    assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", slack["text"])
    assert {block["text"]["type"] for block in slack["blocks"] if "text" in block} == {"plain_text"}
    (embed,) = discord_payload(notice)["embeds"]  # type: ignore[misc]
    for text in (embed["title"], embed["description"], embed["fields"][0]["value"]):
        assert not re.search(r"(?<!\\)[*_~`|>#\[\]()<]", text), text


def test_a_cut_text_ends_whole() -> None:
    assert cut("a" * 10, 10) == "a" * 10
    assert cut("a" * 11, 10) == "a" * 9 + "…"
    assert cut("😀" * 6, 10) == "😀" * 4 + "…"
    assert cut("abcdefgh\\*x", 10) == "abcdefgh…"


def test_addresses_of_slack_and_discord_are_recognized() -> None:
    found = {
        url: DestinationRequest(kind="webhook", name="chat", url=url).configuration()["format"]  # type: ignore[arg-type]
        for url in (
            "https://hooks.slack.com/services/T0/B0/x",
            "https://discord.com/api/webhooks/1/x",
            "https://hooks.slack.com.evil.example/x",
        )
    }
    assert list(found.values()) == [WebhookFormat.SLACK, WebhookFormat.DISCORD, WebhookFormat.JSON]
