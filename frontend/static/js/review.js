// The next item is loaded while this one is read, and shown as soon as a verdict is given. The server's answer follows.
(() => {
  const shown = () => document.getElementById("case");
  const pathOf = (address) => new URL(address, location.href).pathname;
  const parse = (html) => new DOMParser().parseFromString(html, "text/html");
  let ready = null; // {address, item}
  let saving = Promise.resolve(); // verdicts are sent one after the other

  const prefetch = async () => {
    const address = shown()?.dataset.next;
    if (!address || ready?.address === address) return;
    try {
      const response = await fetch(address);
      const item = response.ok && !response.redirected ? parse(await response.text()).getElementById("case") : null;
      if (item && shown()?.dataset.next === address) ready = { address, item };
    } catch { /* then the verdict loads the page */ }
  };

  const show = (item, address) => {
    shown().replaceWith(item);
    htmx.process(item);
    history.pushState(null, "", address);
    scrollTo(0, 0);
    const title = item.querySelector("h1"); // a screen reader reads on from here, and Tab continues here
    if (title && !document.activeElement?.matches("textarea, input")) { title.tabIndex = -1; title.focus({ preventScroll: true }); }
    document.dispatchEvent(new CustomEvent("htmx:after:swap", { detail: { ctx: {} } })); // local times, switches of transcripts
  };

  const report = (text, kind = "good") => {
    const notice = Object.assign(document.createElement("div"), { className: "notice" });
    notice.dataset.kind = kind;
    notice.append(Object.assign(document.createElement("span"), { textContent: text }));
    document.getElementById("notices").replaceChildren(notice);
  };

  // Until the verdict is stored, its undo waits; the button of the loaded page would take back the one before.
  const delayUndo = (item, stored) => {
    const old = item.querySelector('form[action^="/review/undo"]');
    const button = Object.assign(document.createElement("button"), { type: "button", className: "button", textContent: "Undo" });
    Object.assign(button.dataset, { key: "u", kind: "quiet" });
    button.addEventListener("click", () => stored.then((isStored) => isStored && shown().querySelector('form[action^="/review/undo"] button')?.click()));
    if (old) old.replaceWith(button);
    else item.querySelector(".page-head .actions, .page-head")?.append(button);
  };

  const store = async (form, body, before, item, address) => {
    let response;
    try { response = await fetch(form.action, { method: "POST", body, keepalive: true }); } catch { /* no answer */ }
    if (!response?.ok || !pathOf(response.url).startsWith("/review")) { // elsewhere: the session has ended
      if (shown() === item) show(before.item, before.address);
      report(`The verdict was not stored${response ? ` (HTTP ${response.status})` : ""}. Your comment is still here; try again.`, "bad");
      prefetch();
      return false;
    }
    const answer = parse(await response.text());
    document.getElementById("notices").replaceChildren(...answer.getElementById("notices")?.childNodes ?? []);
    if (shown() !== item) return true; // the next verdict was given in the meantime
    const fresh = answer.getElementById("case");
    if (!fresh) return location.assign(response.url), false; // nothing is left
    if (pathOf(response.url) !== pathOf(address)) return show(fresh, response.url), prefetch(), true;
    for (const part of [...item.querySelectorAll(":scope > .offer")]) part.remove();
    const head = item.querySelector(":scope > .page-head");
    const parts = [...fresh.children].slice(0, [...fresh.children].findIndex((each) => each.matches(".review")));
    head.replaceWith(...parts);
    for (const part of parts) htmx.process(part);
    item.dataset.next = fresh.dataset.next;
    history.replaceState(null, "", response.url);
    prefetch();
    return true;
  };

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches(".verdict-form") || !event.submitter) return;
    const address = shown().dataset.next;
    if (ready?.address !== address || !address) return; // by the way of other forms
    event.preventDefault();
    event.stopImmediatePropagation();
    const before = { item: shown(), address: location.href };
    const { item } = ready;
    const verdict = event.submitter.value;
    const body = new URLSearchParams(new FormData(form, event.submitter));
    ready = null;
    const stored = saving = saving.then(() => store(form, body, before, item, address));
    delayUndo(item, stored);
    show(item, address);
    report(`Verdict: ${verdict.replaceAll("_", " ")}.`);
  }, true);
  addEventListener("popstate", () => location.reload());
  if (shown()) setTimeout(prefetch, 50);
})();
