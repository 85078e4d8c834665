// Completion in the filter box: fields, operators and values at the cursor. `data-filter` holds the fields.
(() => {
  const box = document.querySelector("[data-filter]");
  const input = box?.querySelector("input");
  if (!input) return;
  const fields = JSON.parse(box.dataset.filter);
  const byName = new Map(fields.map((field) => [field.name.toLowerCase(), field]));
  const list = Object.assign(document.createElement("ul"), { id: "filter-completion", hidden: true });
  list.setAttribute("role", "listbox");
  box.append(list);
  const aria = { role: "combobox", "aria-autocomplete": "list", "aria-controls": list.id, "aria-expanded": "false" };
  for (const [name, value] of Object.entries(aria)) input.setAttribute(name, value);
  let options = [];
  let chosen = -1;

  const quoted = (text) => /^[\w.-]+$/.test(text) ? text : `"${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
  const written = (name) => {
    const dot = name.indexOf(".");
    return dot > 0 ? name.slice(0, dot + 1) + quoted(name.slice(dot + 1)) : name;
  };
  const pattern = /"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|!=|<=|>=|==|[=<>~(),]|[^\s()=!<>~,"']+(?:(?<=\.)"[^"]*"?)?/g;

  // What may stand at the cursor: the words before it decide, the word under it is the beginning of the answer.
  const place = () => {
    const before = input.value.slice(0, input.selectionStart);
    const words = [...before.matchAll(pattern)].map((found) => ({ text: found[0], start: found.index, end: found.index + found[0].length }));
    const last = words.at(-1);
    const isOpen = last && last.end === before.length && !/^([(),]|[=<>!~]+)$/.test(last.text);
    const typed = isOpen ? words.pop() : { text: "", start: before.length };
    return { typed: typed.text, start: typed.start, ...asked(words.map((word) => word.text)) };
  };
  const asked = (words) => {
    const last = words.at(-1)?.toLowerCase() ?? "";
    const open = words.lastIndexOf("(");
    const isList = open > 1 && words[open - 1].toLowerCase() === "in" && !words.slice(open).includes(")");
    if (isList) return { wants: last === "(" || last === "," ? "value" : "nothing", field: fieldOf(words[open - 2] === "not" ? words[open - 3] : words[open - 2]) };
    if (!last || ["and", "or", "(", "not"].includes(last)) return { wants: "field" };
    if (last === "has") return { wants: "had" };
    if (/^([=<>~]|!=|<=|>=|==)$/.test(last)) return { wants: "value", field: fieldOf(words.at(-2)) };
    const field = fieldOf(words.at(-1));
    if (field && words.at(-2)?.toLowerCase() !== "has" && !/^[=<>!~]/.test(words.at(-2) ?? "")) return { wants: "operator", field };
    return { wants: "joint" };
  };
  const fieldOf = (word) => byName.get((word ?? "").replaceAll('"', "").toLowerCase());

  const names = () => fields.map((field) => ({ text: written(field.name), hint: field.help }));
  const offered = ({ wants, field }) => {
    switch (wants) {
      case "field": return [...names(), { text: "has", hint: "there is one" }, { text: "not", hint: "the opposite" }];
      case "had": return names();
      case "operator": return field.operators.map((text) => ({ text: text === "in" ? "in (" : text, hint: "" })).concat(field.kind === "yes_no" ? joints : []);
      case "value": return (field?.kind === "yes_no" ? ["yes", "no"] : field?.choices ?? []).map((text) => ({ text: quoted(text), hint: "" }));
      case "joint": return joints;
      default: return [];
    }
  };
  const joints = [{ text: "and", hint: "both" }, { text: "or", hint: "either" }];

  const show = () => {
    const here = place();
    const typed = here.typed.replaceAll('"', "").toLowerCase();
    const plain = (option) => option.text.replaceAll('"', "").toLowerCase();
    const found = offered(here).filter((option) => plain(option).includes(typed) && plain(option) !== typed);
    found.sort((a, b) => plain(b).startsWith(typed) - plain(a).startsWith(typed));
    options = found.slice(0, 12).map((option) => ({ ...option, start: here.start }));
    chosen = -1;
    list.replaceChildren(...options.map((option, number) => {
      const row = Object.assign(document.createElement("li"), { id: `filter-option-${number}` });
      row.setAttribute("role", "option");
      row.append(Object.assign(document.createElement("code"), { textContent: option.text }), Object.assign(document.createElement("span"), { textContent: option.hint }));
      row.addEventListener("pointerdown", (event) => { event.preventDefault(); take(number); });
      return row;
    }));
    open(options.length > 0);
  };
  const open = (isOpen) => { list.hidden = !isOpen; input.setAttribute("aria-expanded", String(isOpen)); if (!isOpen) mark(-1); };
  const mark = (number) => {
    chosen = number;
    [...list.children].forEach((row, each) => row.setAttribute("aria-selected", String(each === number)));
    list.children[number]?.scrollIntoView({ block: "nearest" });
    if (number < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `filter-option-${number}`);
  };
  const take = (number) => {
    const option = options[number];
    const rest = input.value.slice(input.selectionStart);
    const head = `${input.value.slice(0, option.start)}${option.text}${option.text.endsWith("(") ? "" : " "}`;
    input.value = head + rest.trimStart();
    input.setSelectionRange(head.length, head.length);
    show();
  };

  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  input.addEventListener("click", show);
  input.addEventListener("blur", () => open(false));
  input.addEventListener("keydown", (event) => {
    if (event.key === " " && event.ctrlKey) { event.preventDefault(); return show(); }
    if (list.hidden) { if (event.key === "ArrowDown") { event.preventDefault(); show(); } return; }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); return mark((chosen + step + options.length) % options.length); }
    if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); return open(false); }
    if (event.key === "Tab" && !event.shiftKey) { event.preventDefault(); return take(Math.max(chosen, 0)); }
    if (event.key === "Enter" && chosen >= 0) { event.preventDefault(); take(chosen); }
  });
})();
