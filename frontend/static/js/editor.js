// Code fields: <div data-editor data-mode="python"> around a textarea. The textarea stays the form's value, and works alone.
// With data-validate="/…" the form is posted there while typing; the answer {problems: [{line, column, message, type}]} is shown.
(() => {
  const vendor = new URL("../vendor/ace-1.45.2/", document.currentScript.src).href;
  const MODES = { yaml: "yaml", yml: "yaml", py: "python", python: "python", md: "markdown", markdown: "markdown", json: "json", toml: "toml", dockerfile: "dockerfile" };
  const PAUSE_MS = 500;
  let library;

  const load = () => library ??= new Promise((resolve, reject) => {
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${vendor}ace.css` }));
    document.head.append(Object.assign(document.createElement("script"), { src: `${vendor}ace.js`, onload: resolve, onerror: reject }));
  }).then(() => {
    ace.config.set("basePath", vendor);
    ace.config.set("useStrictCSP", true); // styles come from the files above
    // our own theme is plain CSS (components.css), which follows light and dark by itself
    ace.define("ace/theme/proctor", (_require, exports) => Object.assign(exports, { cssClass: "ace-proctor", cssText: "" }));
  });

  const begin = async (box) => {
    if (box.editor) return;
    box.editor = true;
    await load();
    const area = box.querySelector("textarea");
    const pane = document.createElement("div");
    box.append(pane);
    area.hidden = true;
    const editor = box.editor = ace.edit(pane, {
      value: area.value,
      mode: `ace/mode/${MODES[box.dataset.mode] ?? "text"}`,
      theme: "ace/theme/proctor",
      useWorker: false,
      useSoftTabs: true,
      tabSize: box.dataset.mode === "yaml" ? 2 : 4,
      showPrintMargin: false,
      fontSize: 12.5,
      minLines: 24,
      maxLines: +box.dataset.lines || 44,
      readOnly: area.readOnly,
    });
    editor.textInput.getElement().setAttribute("aria-label", box.dataset.label || area.name);
    editor.commands.addCommand({ name: "save", bindKey: { win: "Ctrl-S", mac: "Command-S" }, exec: () => area.form?.requestSubmit() });
    editor.commands.addCommand({ name: "leave", bindKey: { win: "Esc", mac: "Esc" }, exec: () => editor.blur() });
    wrapLines(box, editor);
    const saved = area.value;
    let timer = 0;
    editor.session.on("change", () => {
      area.value = editor.getValue();
      area.dispatchEvent(new Event("input", { bubbles: true }));
      clearTimeout(timer);
      timer = setTimeout(() => validate(box, area, editor), PAUSE_MS);
    });
    area.form?.addEventListener("submit", () => { box.dataset.submitted = ""; });
    addEventListener("beforeunload", (event) => { if (area.value !== saved && !("submitted" in box.dataset) && area.isConnected) event.preventDefault(); });
    validate(box, area, editor);
    goToLine(editor);
    addEventListener("hashchange", () => goToLine(editor));
  };

  // Long lines are wrapped in all editors of this browser, or in none.
  const wraps = () => { try { return localStorage.getItem("editor-wrap") === "on"; } catch { return false; } };
  const wrapLines = (box, editor) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "button", textContent: "Wrap lines", title: "Alt Z" });
    button.dataset.kind = "quiet";
    const apply = (isOn) => { editor.session.setUseWrapMode(isOn); button.setAttribute("aria-pressed", isOn); };
    const toggle = () => {
      const isOn = button.getAttribute("aria-pressed") !== "true";
      try { localStorage.setItem("editor-wrap", isOn ? "on" : "off"); } catch { /* private window: for this page only */ }
      apply(isOn);
    };
    button.addEventListener("click", toggle);
    editor.commands.addCommand({ name: "wrap", bindKey: { win: "Alt-Z", mac: "Option-Z" }, exec: toggle });
    const tools = Object.assign(document.createElement("div"), { className: "editor-tools" });
    tools.append(button);
    box.prepend(tools);
    apply(wraps());
  };

  // Links to a line end in #L12, also those to the file that is open.
  const goToLine = (editor) => {
    const line = Number(/^#L(\d+)$/.exec(location.hash)?.[1]);
    if (!line) return;
    editor.gotoLine(line, 0);
    editor.container.scrollIntoView({ block: "nearest" });
    editor.focus();
  };

  const validate = async (box, area, editor) => {
    if (!box.dataset.validate || !area.form) return;
    const text = area.value;
    const answer = await fetch(box.dataset.validate, { method: "POST", body: new URLSearchParams(new FormData(area.form)), headers: { Accept: "application/json" } }).catch(() => null);
    if (!answer?.ok || area.value !== text) return;
    const { problems = [] } = await answer.json();
    const here = problems.filter((problem) => !problem.path || problem.path === box.dataset.path);
    editor.session.setAnnotations(here.filter((problem) => problem.line).map((problem) => ({ row: problem.line - 1, column: (problem.column || 1) - 1, text: problem.message, type: problem.type || "error" })));
    list(box, editor, problems);
  };

  const list = (box, editor, problems) => {
    const place = box.parentElement.querySelector(".problems");
    place?.replaceChildren(...problems.map((problem) => {
      const item = document.createElement("li");
      item.dataset.type = problem.type || "error";
      item.textContent = [problem.path, problem.line && `line ${problem.line}`].filter(Boolean).join(", ") + (problem.path || problem.line ? ": " : "") + problem.message;
      item.addEventListener("click", () => { if (problem.line) { editor.gotoLine(problem.line, (problem.column || 1) - 1); editor.focus(); } });
      return item;
    }));
  };

  // Whoever reset or acted sees what went wrong, wherever in the panel it is drawn: the answer may come later, by the stream.
  let failureSeen = document.getElementById("try-error")?.dataset.try;
  let isTrying = false;
  document.addEventListener("submit", (event) => { if (event.target.closest("#try-panel")) isTrying = true; }, true);
  const showFailure = () => {
    const failure = document.getElementById("try-error");
    if (!failure) { failureSeen = undefined; return; }
    if (!isTrying || failure.dataset.try === failureSeen) return;
    failureSeen = failure.dataset.try;
    isTrying = false;
    failure.scrollIntoView({ block: "center" });
    failure.focus({ preventScroll: true });
  };
  document.addEventListener("htmx:after:swap", showFailure);
  document.addEventListener("htmx:sse:after:message", showFailure);

  const start = () => document.querySelectorAll("[data-editor]").forEach(begin);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
  document.addEventListener("htmx:after:swap", start);
})();
