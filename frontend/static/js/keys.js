// Keyboard shortcuts that elements declare: data-key="n" (or "g r" for a sequence). `?` lists them.
(() => {
  let pending = "";
  let timer = 0;
  const isTyping = (element) => element.closest("input:not([type=radio], [type=checkbox]), textarea, select, [contenteditable], .ace_editor");
  const visible = () => [...document.querySelectorAll("[data-key]")].filter((element) => element.offsetParent !== null || element.hidden === false && element.dataset.keyAlways !== undefined);

  // What an element is called: without its keys and icons.
  const nameOf = (element) => {
    if (element.dataset.keyLabel) return element.dataset.keyLabel;
    if (element.labels?.length) return textOf(element.labels[0]);
    return textOf(element) || element.getAttribute("aria-label") || element.title;
  };
  const textOf = (element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll("kbd, svg, .hint").forEach((part) => part.remove());
    return copy.textContent.replace(/\s+/g, " ").trim();
  };

  const act = (element) => {
    if (element.matches("input, select, textarea")) element.focus();
    else element.click();
  };

  window.proctorKeys = { nameOf, act }; // for the palette

  const isBound = (key) => visible().some((element) => element.dataset.key.split(" ").includes(key));

  const list = () => {
    const dialog = document.getElementById("shortcuts");
    if (dialog.open) return dialog.close();
    const rows = visible().map((element) => {
      const row = document.createElement("div");
      const name = document.createElement("dt");
      const key = document.createElement("dd");
      const kbd = document.createElement("kbd");
      name.textContent = nameOf(element);
      kbd.textContent = element.dataset.key;
      key.append(kbd);
      row.append(name, key);
      return row;
    });
    const title = document.createElement("h2");
    title.textContent = rows.length ? "Keys on this page" : "This page has no keys of its own";
    const definitions = document.createElement("dl");
    definitions.className = "facts";
    definitions.append(...rows);
    dialog.replaceChildren(title, definitions);
    dialog.showModal();
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    // A key that is held acts once: the next page, or the next item in its place, must not get it too.
    if (event.repeat && !isTyping(event.target)) {
      const isHeldButton = event.key === "Enter" && event.target.closest("button, a, summary, [type=submit]");
      if (isHeldButton || isBound(event.key)) event.preventDefault();
      return;
    }
    if (event.key === "Escape" && isTyping(event.target)) return event.target.blur();
    if (isTyping(event.target)) return;
    if (event.key === "?") { event.preventDefault(); return list(); }
    const typed = pending ? `${pending} ${event.key}` : event.key;
    const elements = visible();
    const found = elements.find((element) => element.dataset.key === typed) ?? elements.find((element) => element.dataset.key === event.key);
    pending = "";
    clearTimeout(timer);
    if (found) { event.preventDefault(); act(found); return; }
    if (elements.some((element) => element.dataset.key.startsWith(`${event.key} `))) {
      pending = event.key;
      timer = setTimeout(() => { pending = ""; }, 800);
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.id === "shortcuts") event.target.close();
  });
})();
