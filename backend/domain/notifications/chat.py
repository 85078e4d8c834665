"""Notices in the formats of chat webhooks. Names and texts of models are data there: no mentions, links or formatting.

Slack: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and its Block Kit reference. Discord:
https://docs.discord.com/developers/resources/webhook#execute-webhook and its embed limits. Lengths are measured in
UTF-16 units, as both do at least in their editors; in characters a text is never longer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import urlsplit

SLACK_HEADER, SLACK_TEXT, SLACK_BUTTON, SLACK_URL = 150, 3000, 75, 3000
DISCORD_TITLE, DISCORD_DESCRIPTION, DISCORD_NAME, DISCORD_VALUE, DISCORD_FIELDS = 256, 4096, 256, 1024, 25
DISCORD_TOTAL = 6000
"""All texts of one message's embeds together."""
_HOSTS = {
    "hooks.slack.com": "slack",
    "hooks.slack-gov.com": "slack",
    "discord.com": "discord",
    "discordapp.com": "discord",
}


class WebhookFormat(StrEnum):
    JSON = "json"
    """All fields of a notice, for programs."""
    SLACK = "slack"
    DISCORD = "discord"

    @classmethod
    def of_address(cls, url: str) -> "WebhookFormat":
        """Recognize the addresses that Slack and Discord hand out."""
        return cls(_HOSTS.get(urlsplit(url).hostname or "", cls.JSON))


@dataclass(frozen=True, slots=True)
class ChatNotice:
    """A notice as chats show it. Addresses are this installation's own."""

    title: str
    text: str
    label: str
    """Its kind."""
    url: str
    created_at: datetime
    run: tuple[str, str] | None = None
    """Name and address."""
    examples: Sequence[str] = ()
    """Addresses of rollouts."""


def slack_payload(notice: ChatNotice) -> dict[str, object]:
    """Blocks of plain text, which Slack does not parse, with buttons as the only links; `text` is shown in alerts."""
    links = [("Open in Proctor", notice.url), *([("Open the run", notice.run[1])] if notice.run else ())]
    links += [(f"Rollout {number}", url) for number, url in enumerate(notice.examples, 1)]
    context = " · ".join(part for part in (notice.label, notice.run[0] if notice.run else "") if part)
    blocks: list[Mapping[str, object]] = [
        {"type": "header", "text": _plain(notice.title, SLACK_HEADER)},
        {"type": "section", "text": _plain(notice.text, SLACK_TEXT)},
        {"type": "context", "elements": [_plain(context, SLACK_TEXT)]},
        {
            "type": "actions",
            "elements": [
                {"type": "button", "text": _plain(label, SLACK_BUTTON), "url": url}
                for label, url in links
                if len(url) <= SLACK_URL
            ],
        },
    ]
    fallback = cut(escape_slack(notice.title), SLACK_HEADER)
    return {
        "text": fallback or "Proctor",
        "blocks": [block for block in blocks if block.get("elements", True)],
        "unfurl_links": False,
        "unfurl_media": False,
    }


def discord_payload(notice: ChatNotice) -> dict[str, object]:
    """One embed whose title is the link. `allowed_mentions` is empty, so nothing in it can notify anyone."""
    fields = [{"name": "Run", "value": _markdown(notice.run[0], DISCORD_VALUE), "inline": True}] if notice.run else []
    if notice.examples:
        links = " ".join(f"[rollout {number}]({url})" for number, url in enumerate(notice.examples, 1))
        if len(links) <= DISCORD_VALUE:  # a cut link would be none
            fields.append({"name": "Examples", "value": links, "inline": True})
    title = _markdown(notice.title, DISCORD_TITLE) or "Proctor"
    taken = len(title) + len(notice.label) + sum(len(str(field["name"])) + len(str(field["value"])) for field in fields)
    embed = {
        "title": title,
        "description": _markdown(notice.text, min(DISCORD_DESCRIPTION, DISCORD_TOTAL - 2 * taken)),
        "url": notice.url,
        "timestamp": notice.created_at.isoformat(),
        "footer": {"text": cut(notice.label, DISCORD_NAME)},
        "fields": fields,
    }
    return {"username": "Proctor", "embeds": [embed], "allowed_mentions": {"parse": []}}


def escape_slack(text: str) -> str:
    """Escape what Slack's text format reads as a link, a mention or a channel, and unlink addresses."""
    return _unlinked(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cut(text: str, limit: int) -> str:
    """Shorten a text to this many UTF-16 units, and end it with an ellipsis then."""
    if _units(text) <= limit:
        return text
    kept = text.encode("utf-16-le")[: 2 * (limit - 1)].decode("utf-16-le", "ignore")
    # not within an entity or behind the backslash of what it would escape
    return re.sub(r"(&[a-z]{0,3}|\\)$", "", kept) + "…"


def _plain(text: str, limit: int) -> dict[str, object]:
    return {"type": "plain_text", "text": cut(_unlinked(text), limit) or "-", "emoji": False}


def _markdown(text: str, limit: int) -> str:
    """Text in which Discord finds no formatting, masked links, mentions or addresses."""
    return cut(re.sub(r"([\\*_~`|>#\-\[\]()<:])", r"\\\1", _unlinked(text)), limit)


def _unlinked(text: str) -> str:
    """Break addresses and mentions with a zero-width space, so that chats make no links of a model's text."""
    text = re.sub(r"(?i)\b([a-z][a-z0-9+.-]*:)(?=//)", "\\1\u200b", text)
    text = re.sub(r"(?i)\b(mailto|www|tel)([:.])", "\\1\u200b\\2", text)
    return text.replace("@", "@\u200b")


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
