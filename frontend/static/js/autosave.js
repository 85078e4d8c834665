// Saving a draft while it is typed: [data-autosave] posts the form by htmx; this keeps its requests in step.
(() => {
  const form = () => document.querySelector("[data-autosave]")?.closest("form");

  // A save that waited for the one before it carries what that one answered, not what was there when it was asked for.
  document.addEventListener("htmx:before:request", (event) => {
    const { request } = event.detail.ctx;
    const current = form();
    if (!current || !request.body?.has?.("mark") || request.action !== current.getAttribute("action")) return;
    for (const name of ["mark", "revision"]) request.body.set(name, current.elements[name].value);
  });

  // The draft is tried as it is saved: what stands in the editor is saved first, then the question is asked again.
  let isUnsaved = false;
  let waiting = null;
  const ask = ({ action, data }) => { // the panel may have been drawn anew meanwhile, so its form is not used
    const again = Object.assign(document.createElement("form"), { method: "post", action, hidden: true });
    again.setAttribute("hx-post", action);
    again.setAttribute("hx-swap", "none");
    for (const [name, value] of data) again.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
    document.body.append(again);
    htmx.process(again);
    again.requestSubmit();
    setTimeout(() => again.remove(), 30000);
  };
  document.addEventListener("submit", (event) => {
    if (!isUnsaved || !event.target.closest("#try-panel")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    waiting = { action: event.target.getAttribute("action"), data: new FormData(event.target, event.submitter) };
    form()?.requestSubmit(form().querySelector("button[value=save]"));
  }, true);
  document.addEventListener("htmx:after:request", (event) => {
    const { request, response } = event.detail.ctx;
    const area = form()?.elements.text;
    if (!area || !request.body?.has?.("text")) return;
    isUnsaved = response?.status !== 200 || request.body.get("text") !== area.value;
    const asked = waiting;
    waiting = null;
    if (asked && !isUnsaved) ask(asked);
  });
  document.addEventListener("input", (event) => { if (event.target.name === "text" && event.target.form === form()) isUnsaved = true; });

  // Leaving the page is safe once what stands in the editor is what was saved.
  document.addEventListener("htmx:after:request", (event) => {
    const { request, response } = event.detail.ctx;
    const area = form()?.elements.text;
    if (!area || response?.status !== 200 || request.body?.get?.("text") !== area.value) return;
    area.closest("[data-editor]").dataset.submitted = "";
  });

  // Somebody, or another tab, saved this file: told before more is typed. Our own saves are news for a moment only.
  let timer = 0;
  const compare = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const news = document.getElementById("draft-news");
      const current = form();
      if (news && current) news.hidden = news.dataset.mark === current.elements.mark.value;
    }, 700);
  };
  for (const name of ["htmx:after:swap", "htmx:after:request", "htmx:sse:after:message"]) document.addEventListener(name, compare);

  document.addEventListener("input", (event) => {
    if (event.target.name === "text" && event.target.form === form()) delete event.target.closest("[data-editor]").dataset.submitted;
  });
})();
