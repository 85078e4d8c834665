// The palette (Ctrl-K or ⌘K): go to anything by its name or id, and do what this page offers.
(() => {
  const dialog = document.getElementById("palette");
  const input = dialog.querySelector("input");
  const list = document.getElementById("palette-list");
  const here = document.getElementById("palette-here");
  const found = document.getElementById("palette-found");
  let chosen = 0;

  // What the page's own buttons and links do, by their names.
  const actionsHere = () => {
    const named = new Map();
    for (const element of document.querySelectorAll("main .actions :is(a.button, button), main [data-key]")) {
      if (element.disabled || !element.checkVisibility()) continue;
      const name = proctorKeys.nameOf(element);
      if (name && !named.has(name)) named.set(name, element);
    }
    return named;
  };

  const option = (name, run) => {
    const row = document.createElement("button");
    const label = document.createElement("span");
    const kind = document.createElement("em");
    row.type = "button";
    label.textContent = name;
    kind.textContent = "on this page";
    row.append(label, document.createElement("small"), kind);
    row.addEventListener("click", () => { dialog.close(); run(); });
    return row;
  };

  const listHere = () => {
    const text = input.value.trim().toLowerCase();
    const rows = [...actionsHere()].filter(([name]) => name.toLowerCase().includes(text)).slice(0, text ? 8 : 5);
    here.replaceChildren(...rows.map(([name, element]) => option(name, () => proctorKeys.act(element))));
    mark(0);
  };

  const mark = (index) => {
    const rows = [...list.querySelectorAll("a, button")];
    chosen = rows.length ? (index + rows.length) % rows.length : 0;
    rows.forEach((row, at) => {
      row.id = `palette-option-${at}`;
      row.tabIndex = -1;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(at === chosen));
    });
    if (!rows.length) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", rows[chosen].id);
    rows[chosen].scrollIntoView({ block: "nearest" });
  };

  const open = () => {
    if (dialog.open) return dialog.close();
    input.value = "";
    dialog.showModal();
    listHere();
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      if (document.querySelector("dialog[open]:not(#palette)")) return; // a question waits for its answer
      event.preventDefault();
      if (!event.repeat) open();
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
    if (event.target.closest("[data-palette]")) { event.preventDefault(); open(); }
  });
  input.addEventListener("input", listHere);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); mark(chosen + step); }
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    list.querySelectorAll("a, button")[chosen]?.click();
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx?.sourceElement !== input) return;
    const names = new Set([...here.querySelectorAll("span")].map((name) => name.textContent));
    for (const row of found.querySelectorAll("a")) if (names.has(row.querySelector("span").textContent)) row.remove();
    mark(0);
  });
})();
