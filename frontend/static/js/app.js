// What every page needs beside htmx: live blocks, notices, filters that submit themselves.
(() => {
  // An SSE event is the name of the block that it replaces; htmx 4 itself swaps only unnamed events.
  document.addEventListener("htmx:sse:before:message", (event) => {
    const message = event.detail.message;
    const id = (message.event || "").replaceAll("_", "-");
    if (!id || !document.getElementById(id)) return; // a name without an element stays a DOM event
    message.data = `<hx-partial hx-target="#${CSS.escape(id)}" hx-swap="outerMorph">${message.data}</hx-partial>`;
    message.event = "";
  });

  // A stream that connects again after the session ended is refused: whoever watches has to sign in, then comes back here.
  document.addEventListener("htmx:sse:error", (event) => { if (event.detail.status === 401) location.reload(); });

  // htmx connects a stream again once it was there; a first connection that fails is tried again here.
  document.addEventListener("htmx:finally:request", (event) => {
    const { sourceElement: stream, response } = event.detail.ctx;
    const status = response?.raw.status ?? 503; // no answer at all
    if (!stream?.hasAttribute?.("data-live") || status < 500) return;
    const failures = stream.failures = (stream.failures ?? 0) + 1;
    const again = () => stream.isConnected && htmx.ajax("GET", stream.getAttribute("hx-sse:connect"), { source: stream });
    setTimeout(again, Math.min(8000, 500 * 2 ** failures));
  });

  // An answer may have been drawn before what the stream brought while it was under way, and lie over it now. The stream
  // believes that delivered: it is asked for everything again, a closed one too.
  let brought = null;
  document.addEventListener("htmx:sse:before:message", (event) => {
    brought = { stream: event.target, connection: event.detail.connection, at: performance.now() };
  });
  document.addEventListener("htmx:before:request", (event) => { event.detail.ctx.sentAt = performance.now(); });
  document.addEventListener("htmx:after:swap", (event) => {
    const { sourceElement: source, sentAt } = event.detail.ctx;
    if (source?.matches?.("[data-live], [data-bell]") || !brought?.stream.isConnected || !(sentAt < brought.at)) return;
    const { stream, connection } = brought;
    brought = null;
    connection.lastEventId = "";
    if (connection.reader) connection.reader.cancel();
    else htmx.ajax("GET", stream.getAttribute("hx-sse:connect"), { source: stream });
  });

  // A form that is sent again starts without the complaints of the last time.
  document.addEventListener("htmx:before:request", (event) => {
    const form = event.target.closest?.("form");
    form?.querySelectorAll("[data-error-for]").forEach((slot) => { slot.textContent = ""; });
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx?.sourceElement?.hasAttribute?.("data-bell")) return; // nobody did anything
    const wrong = [...document.querySelectorAll("[data-error-for]")].find((slot) => slot.textContent.trim());
    wrong?.closest(".field")?.querySelector("input, select, textarea")?.focus();
  });
  document.addEventListener("htmx:error", (event) => {
    const source = event.detail.ctx?.sourceElement;
    if (source?.matches?.("[data-live], [data-bell]")) return; // they ask again by themselves
    const box = document.getElementById("notices");
    if (box) box.textContent = "The server did not answer. What you typed is still here; try again.";
  });

  // A button of a form for selected rows asks too, with their number: data-confirm="Stop {run}?" counts the values of `run`.
  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    const question = ctx.request.submitter?.dataset?.confirm;
    if (!question) return;
    ctx.confirm = question.replace(/\{(\w+)\}/, (_, name) => {
      const count = ctx.request.body.getAll(name).length;
      return `${count} ${name}${count === 1 ? "" : "s"}`;
    });
  });

  // hx-confirm asks in a dialog of our own; the button that was pressed names what will happen.
  document.addEventListener("htmx:confirm", (event) => {
    event.preventDefault();
    const { ctx, issueRequest, dropRequest } = event.detail;
    const pressed = ctx.request.submitter ?? ctx.sourceElement.querySelector("button") ?? ctx.sourceElement;
    const dialog = document.createElement("dialog");
    const form = Object.assign(document.createElement("form"), { method: "dialog", className: "stack" });
    const actions = Object.assign(document.createElement("div"), { className: "actions" });
    for (const [text, value, kind] of [[pressed.firstChild?.textContent?.trim() || pressed.textContent.trim(), "yes", pressed.dataset.kind || "primary"], ["Cancel", "", "quiet"]]) {
      const button = Object.assign(document.createElement("button"), { className: "button", value, textContent: text });
      button.dataset.kind = kind;
      actions.append(button);
    }
    form.append(Object.assign(document.createElement("p"), { textContent: ctx.confirm }), actions);
    dialog.append(form);
    dialog.addEventListener("close", () => { (dialog.returnValue ? issueRequest : dropRequest)(); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });

  // On a phone the navigation scrolls sideways: begin where we are.
  for (const here of document.querySelectorAll(".rail > .places [aria-current]")) {
    here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 24;
  }

  // Times in the zone of whoever reads them: exact ones at once, those of relative times when they are pointed at.
  const local = (value, parts) => new Date(value).toLocaleString("sv-SE", { ...parts, timeZoneName: undefined });
  const zone = (value) => new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(new Date(value)).find(({ type }) => type === "timeZoneName").value;
  const exact = (time) => `${local(time.dateTime)} ${zone(time.dateTime)}`;
  const localize = () => {
    for (const time of document.querySelectorAll("time[data-exact]")) {
      const text = time.dataset.exact === "time" ? local(time.dateTime, { timeStyle: "medium" }) : exact(time);
      if (time.textContent !== text) time.textContent = text;
      if (time.title) time.title = exact(time);
    }
  };
  localize();
  document.addEventListener("htmx:after:swap", localize);
  document.addEventListener("mouseover", (event) => {
    const time = event.target.closest?.("time[datetime]");
    if (time) time.title = exact(time);
  });

  // What scrolls can be scrolled by keyboard in every browser; what fits is no stop of the Tab key. Parts of a long
  // transcript that are not drawn yet are left alone, and all sizes are read before anything changes: one layout.
  const reachable = () => {
    const boxes = [...document.querySelectorAll(".table-box, pre, .diff, .try-columns, .prose table")]
      .filter((box) => box.checkVisibility({ contentVisibilityAuto: true }))
      .map((box) => [box, box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1]);
    for (const [box, scrolls] of boxes) {
      if (scrolls && !box.hasAttribute("tabindex")) Object.assign(box, { tabIndex: 0 }).dataset.scrolls = "true";
      if (!scrolls && box.dataset.scrolls) { box.removeAttribute("tabindex"); delete box.dataset.scrolls; }
    }
  };
  let looks = 0;
  const lookAgain = () => { cancelAnimationFrame(looks); looks = requestAnimationFrame(reachable); };
  reachable();
  for (const name of ["htmx:after:swap", "htmx:sse:after:message", "toggle", "contentvisibilityautostatechange"]) document.addEventListener(name, lookAgain, true);
  addEventListener("resize", lookAgain);

  // Leave no open drop-down behind.
  const dropped = () => document.querySelectorAll("details.drop[open]");
  document.addEventListener("click", (event) => {
    for (const drop of dropped()) if (!drop.contains(event.target)) drop.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const drop of dropped()) { drop.open = false; drop.querySelector("summary").focus(); }
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-dismiss]")) event.target.closest(".notice")?.remove();
    const copy = event.target.closest("[data-copy]");
    if (copy) navigator.clipboard?.writeText(copy.dataset.copy).then(() => { copy.dataset.copied = ""; });
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button, input, label, select") && !getSelection().toString()) location.href = row.dataset.href;
  });
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-autosubmit]");
    if (!form) return;
    for (const control of form.elements) control.disabled ||= control.value === ""; // short addresses
    form.requestSubmit();
  });
})();
