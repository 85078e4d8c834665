"""What axe finds on a page: barriers for people who use a keyboard, a screen reader or a magnifier."""

from collections.abc import Sequence

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

_RUN = """async (only) => {
  const repeated = ["tbody > tr:nth-child(n+5)", ".transcript > li:nth-child(n+5)"];
  const { violations } = await axe.run({ exclude: repeated.map((each) => [each]) }, {
    resultTypes: ["violations"],
    rules: { "target-size": { enabled: true } },
    ...(only.length ? { runOnly: { type: "rule", values: only } } : {}),
  });
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)}`));
}"""


def barriers(page: Page, only: Sequence[str] = ()) -> list[str]:
    """Return the rule and the element of every violation. `only`: these rules instead of all.

    Rows after the fourth are omitted: they have the shape of those above.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found: list[str] = page.evaluate(_RUN, list(only))
    return found


def is_too_wide(page: Page) -> bool:
    """Whether the page scrolls sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


_CUT_OFF = """() => [...document.querySelectorAll(".table-box")].flatMap((box) => {
  if (!box.checkVisibility() || box.scrollWidth <= box.clientWidth + 1) return [];
  const end = box.getBoundingClientRect().right + 1;
  const table = box.querySelector("table");
  if (!table) return []; // a drawing
  const numbers = (table.dataset.point ?? "").split(" ").map(Number);
  const heads = [...box.querySelectorAll("thead tr:first-child > *")];
  const points = heads.filter((_, index) => numbers.includes(index + 1));
  const name = table.getAttribute("aria-label") ?? "a table";
  if (!points.length) return [`${name}: wider than its box, and no column is marked as its point`];
  return points.filter((head) => head.getBoundingClientRect().right > end).map((head) => `${name}: ${head.innerText}`);
})"""


def cut_off(page: Page) -> list[str]:
    """Return columns that carry the point of a table and lie beyond the edge of its box.

    Every table that is wider than its box names such columns (`point` of `ui.table`).
    """
    found: list[str] = page.evaluate(_CUT_OFF)
    return found
