"""Without JavaScript, a refused form is shown again with the values that were sent and the errors next to its fields.

With JavaScript, htmx keeps the form and swaps in only the messages (`errors/error.html`). Without, the form's page is
rendered again and filled in, so that no route has to handle invalid input.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape, unescape
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.types import Message

from backend.errors import AppError, InvalidInput
from backend.web.dependencies import FORM_TYPES

PAGE_COOKIE = "proctor_form_page"
"""Address of the page whose form was refused: the refused page itself is at the address of the form."""
RECEIVED_HEADERS = "proctor.received_headers"
"""In a request's scope over TLS: its headers before cookies got their plain names."""
STATUSES = frozenset({409, 422, 429})
_FORWARDED = frozenset({b"cookie", b"authorization", b"host", b"user-agent", b"accept-language"})
_KEPT = ("type", "asgi", "http_version", "scheme", "root_path", "client", "server")
"""Keys of the request's scope that the page's own request shares."""
_NOT_FILLED = frozenset({"hidden", "password", "file", "submit", "button", "image", "reset"})
_MAX_PAGE_BYTES = 4 << 20
"""A larger page is not rendered again."""


async def refill(request: Request, error: AppError) -> HTMLResponse | None:
    """Return the form's page with the values and errors; None if the page or the form cannot be found."""
    is_form = request.headers.get("content-type", "").startswith(FORM_TYPES)
    if request.method != "POST" or error.status not in STATUSES or not is_form:
        return None
    sent: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in (await request.form()).multi_items():
        if isinstance(value, str):
            sent[name].append(value)
    wrong = error.fields if isinstance(error, InvalidInput) else {}
    sender = urlsplit(request.headers.get("referer", ""))
    urls = []
    if sender.netloc == request.headers.get("host") and sender.path != request.url.path:
        urls.append(sender.path + (f"?{sender.query}" if sender.query else ""))
    elif kept := unquote(request.cookies.get(PAGE_COOKIE, "")):
        urls.append(kept)
    for url in (each for each in (*urls, request.url.path) if each.startswith("/")):
        html = await _render(request, url)
        filled = html and fill(html, request.url.path, sent, error.message, wrong)
        if filled:
            response = HTMLResponse(filled, error.status)
            response.set_cookie(PAGE_COOKIE, quote(url), max_age=3600, httponly=True, samesite="lax", path="/")
            return response
    return None


async def _render(request: Request, url: str) -> str:
    """Return the page at this address as the same browser would get it; empty if there is none."""
    parts = urlsplit(url)
    headers = request.scope.get(RECEIVED_HEADERS, request.scope["headers"])
    scope = {key: request.scope[key] for key in _KEPT if key in request.scope} | {
        "method": "GET",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [(name, value) for name, value in headers if name in _FORWARDED],
        "state": {},
    }
    status, is_html, body = 0, False, bytearray()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status, is_html
        if message["type"] == "http.response.start":
            status = message["status"]
            is_html = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/html")
        elif is_html and status == 200 and len(body) <= _MAX_PAGE_BYTES:
            body.extend(message.get("body", b""))

    await request.app(scope, receive, send)
    return body.decode() if 0 < len(body) <= _MAX_PAGE_BYTES else ""


def fill(html: str, action: str, sent: Mapping[str, list[str]], message: str, wrong: Mapping[str, str]) -> str | None:
    """Fill in the form that posts to `action`; None if the page has no such form."""
    filler = _Filler(action, sent, wrong)
    filler.feed(html)
    filler.close()
    if filler.notice_at is None:
        return None
    rest = "".join(f"<li>{escape(text)}</li>" for name, text in wrong.items() if name not in filler.shown)
    notice = f"{escape(message)}{f'<ul>{rest}</ul>' if rest else ''}"
    filler.out[filler.notice_at] = f'<div class="notice" data-kind="bad" role="alert"><div>{notice}</div></div>'
    return "".join(filler.out)


@dataclass
class _Filler(HTMLParser):
    """Copies a page unchanged, except for the controls and error slots of one form."""

    action: str
    sent: Mapping[str, list[str]]
    wrong: Mapping[str, str]
    out: list[str] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    """Fields whose message has a slot."""
    notice_at: int | None = None
    """Index in `out` of the message about the whole form; None until the form is found."""
    _is_inside: bool = False
    _left: dict[str, Iterator[str]] = field(init=False)
    _select: str | None = None
    _is_dropping: bool = False
    """Inside a textarea whose text was replaced."""
    _open_option: dict[str, str | None] | None = None
    """The attributes of an option without a value, until its text is read."""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self._left = {name: iter(values) for name, values in self.sent.items()}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.out.append(self.get_starttag_text() or "")
        if tag == "form":
            is_post = (given.get("method") or "").lower() == "post"
            if self.notice_at is None and is_post and urlsplit(given.get("action") or "").path == self.action:
                self._is_inside = True
                self.notice_at = len(self.out)
                self.out.append("")
        elif self._is_inside:
            self._fill(tag, given)

    handle_startendtag = handle_starttag

    def _fill(self, tag: str, given: dict[str, str | None]) -> None:
        name = given.get("name") or ""
        if tag == "select":
            self._select = name
        elif tag == "option" and self._select in self.sent:
            value = given.get("value")
            self._mark(tag, given, "selected", self.sent[self._select or ""], value)
        elif tag == "input" and given.get("type") in {"checkbox", "radio"} and name:
            self._mark(tag, given, "checked", self.sent.get(name, []), given.get("value") or "on")
        elif tag == "input" and (given.get("type") or "text") not in _NOT_FILLED and name in self.sent:
            self.out[-1] = _start_tag(tag, {**given, "value": next(self._left[name], self.sent[name][-1])})
        elif tag == "textarea" and name in self.sent:
            self.out.append(
                "\n" + escape(next(self._left[name], self.sent[name][-1]))
            )  # the browser drops the first line break
            self._is_dropping = True
        slot = given.get("data-error-for") or ""
        if slot in self.wrong and slot not in self.shown:
            self.shown.add(slot)
            self.out.append(escape(self.wrong[slot]))

    def _mark(self, tag: str, given: dict[str, str | None], mark: str, sent: list[str], value: str | None) -> None:
        """Mark a selected control. An option without a value is matched by its text, which follows."""
        rest = {key: text for key, text in given.items() if key != mark}
        self.out[-1] = _start_tag(tag, rest | ({mark: None} if value in sent else {}))
        self._open_option = rest if tag == "option" and value is None else None

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._is_dropping = False
        elif tag == "select":
            self._select = None
        elif tag == "form":
            self._is_inside = False
        self.out.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        option = self._open_option
        if option is not None and unescape(data).strip() in self.sent.get(self._select or "", []):
            self.out[-1] = _start_tag("option", option | {"selected": None})
        self._open_option = None
        if not self._is_dropping:
            self.out.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self.out.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.out.append(f"<!{decl}>")


def _start_tag(tag: str, attributes: Mapping[str, str | None]) -> str:
    parts = (key if value is None else f'{key}="{escape(value)}"' for key, value in attributes.items())
    return f"<{' '.join((tag, *parts))}>"
