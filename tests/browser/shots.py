"""Photograph pages: `python -m tests.browser.shots FOLDER [/path …]` draws each at two widths, light and dark.

Paths may name rows: `/runs/{training}`, `/review/{flag}`. Only the pictures remain.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.web.identity import SESSION_COOKIE
from tests import factories
from tests.browser.installation import CHROMIUM, cookie_for, installation
from tests.browser.rows import make_rows

WIDTHS = {"wide": (1440, 900), "phone": (390, 844)}
MOST_CHARACTERS = 120
"""Of a picture's name before the width and the scheme."""


def shoot(page: Page, address: str, path: str, target: Path, width: str, scheme: str) -> None:
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("response", lambda got: problems.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    answer = page.goto(address + path)
    page.wait_for_timeout(500)
    page.screenshot(path=target / f"{name_of(path)}-{width}-{scheme}.png", full_page=True)
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    note = f"{answer.status if answer else '?'} {path} {width} {scheme}"
    sys.stdout.write(
        note + (f" OVERFLOW {overflow}px" if overflow > 0 else "") + "".join(f"\n  {p}" for p in problems) + "\n"
    )


def name_of(path: str) -> str:
    """The picture's file name. No two paths share one, even if they are longer than a file name may be."""
    name = re.sub(r"[^A-Za-z0-9.=-]+", "_", path).strip("_") or "overview"
    if re.fullmatch(r"[/A-Za-z0-9.=-]*", path) and len(name) <= MOST_CHARACTERS:
        return name
    return f"{name[:MOST_CHARACTERS]}~{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="*", default=["/"])
    parser.add_argument("--fresh", action="store_true", help="without runs and flags")
    parser.add_argument("--widths", nargs="*", default=list(WIDTHS))
    parser.add_argument("--schemes", nargs="*", default=["light", "dark"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with installation() as address, sync_playwright() as playwright:
        with transaction() as session:
            if options.fresh:
                names = {"cookie": cookie_for(session, factories.make_person(session, Role.ADMIN, "Ada Lovelace"))}
            else:
                names = make_rows(session)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in options.widths:
            for scheme in options.schemes:
                size = WIDTHS[width]
                context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
                context.add_cookies([{"name": SESSION_COOKIE, "value": names["cookie"], "url": address}])
                for path in options.paths:
                    page = context.new_page()
                    shoot(page, address, path.format(**names), options.folder, width, scheme)
                    page.close()
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
