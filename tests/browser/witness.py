"""Records failures that a person would not see: errors of scripts and servers, requests that leave the machine."""

from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, Response


class Witness:
    """Notes every error of a context's pages from now on, and every request to another place than `address`."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.address = address
        self.problems: list[str] = []
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.problems.append(f"script error: {error.error}"))
        context.on("request", self._see_request)
        context.on("response", self._see_response)

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.problems.append(f"console: {said.text} ({said.location.get('url', '')})")

    def _see_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and f"{parts.scheme}://{parts.netloc}" != self.address:
            self.problems.append(f"left the machine: {request.method} {request.url}")

    def _see_response(self, response: Response) -> None:
        if response.status >= 500:
            self.problems.append(f"{response.status} {response.request.method} {response.url}")


def mark(page: Page) -> None:
    """Leave a mark that a reload would take away."""
    page.evaluate("() => { window.wasLoadedOnce = true; }")


def assert_not_reloaded(page: Page) -> None:
    """The page is still the marked one: its changes arrived without a reload."""
    assert page.evaluate("() => window.wasLoadedOnce === true")
