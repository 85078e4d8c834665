"""Conversations are uploaded, deleted by mistake and restored; the launch form shows the training examples."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from tests import factories

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def written(folder: Path, *rows: object) -> Path:
    path = folder / "games.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def game(number: int, reply: str = "<move>4</move>") -> dict[str, object]:
    said = [("system", "You are a bot."), ("user", f"Board {number}?"), ("assistant", reply)]
    return {"messages": [{"role": role, "content": content} for role, content in said], "reward": number % 2}


def test_a_wrong_line_is_reported_at_the_field_and_a_right_file_is_shown(page: Page, tmp_path: Path) -> None:
    page.goto("/training/examples")
    page.get_by_label("File").set_input_files(written(tmp_path, game(0), game(1, reply=" ")))
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("[data-error-for=file]")).to_contain_text("Line 2: message 3 is an empty reply")
    page.get_by_label("File").set_input_files(written(tmp_path, *(game(number) for number in range(5))))
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="games.jsonl")).to_be_visible()
    expect(page.locator("#notices")).to_contain_text("Uploaded 5 conversations")
    expect(page.locator(".transcript").first).to_contain_text("Board 0?")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator(".empty-title, table")).not_to_contain_text("games.jsonl")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name="games.jsonl")).to_be_visible()


def test_the_launch_form_shows_what_will_be_imitated(page: Page, tmp_path: Path) -> None:
    with transaction() as session:
        version_id = factories.make_environment_version(session).id
    page.goto("/training/examples")
    page.get_by_label("File").set_input_files(written(tmp_path, *(game(number) for number in range(10, 17))))
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="games.jsonl")).to_be_visible()
    file_id = page.url.rpartition("/")[2]
    page.goto(f"/training/new?version_id={version_id}&sft.source=file&sft.file={file_id}")
    block = page.locator("#lessons-preview")
    expect(block).to_contain_text("7 conversations")
    expect(block).to_contain_text("another system prompt")
    page.locator("#choices-sft .launch-more summary").first.click()
    page.locator('[name="sft.system"]').select_option("environment")
    expect(block).not_to_contain_text("another system prompt")
    page.locator('[name="sft.source"]').select_option("rollouts")
    expect(block).to_contain_text("select rollouts")
