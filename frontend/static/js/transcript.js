// Transcripts: views or only the policy's text, long or short tool output, and turns of long conversations by their link.
(() => {
  const root = document.documentElement;
  const switches = {
    transcripts: { button: "[data-policy-text]", on: "text", off: "views" },
    toolOutput: { button: "[data-short-tools]", on: "short", off: "whole" },
  };
  const isOn = (name) => root.dataset[name] === switches[name].on;
  const apply = (scope = document) => {
    for (const [name, { button }] of Object.entries(switches)) {
      for (const each of scope.querySelectorAll(button)) each.setAttribute("aria-pressed", String(isOn(name)));
    }
    for (const text of isOn("transcripts") ? scope.querySelectorAll(".transcript .policy-text") : []) text.open = true;
  };

  for (const [name, { off }] of Object.entries(switches)) {
    try { root.dataset[name] = localStorage.getItem(name) ?? off; } catch { /* no storage */ }
  }
  apply();
  document.addEventListener("click", (event) => {
    for (const [name, { button, on, off }] of Object.entries(switches)) {
      if (!event.target.closest(button)) continue;
      root.dataset[name] = isOn(name) ? off : on;
      try { localStorage.setItem(name, root.dataset[name]); } catch { /* for this page only */ }
      if (name === "transcripts") {
        for (const text of document.querySelectorAll(".transcript .policy-text:not([data-marked])")) text.open = isOn(name);
      }
      apply();
    }
  });
  document.addEventListener("htmx:after:swap", () => apply());

  // A link to a turn in a part that is not loaded opens the page with that part.
  const follow = () => {
    const turn = Number(/^#turn-(\d+)$/.exec(location.hash)?.[1] ?? NaN);
    if (Number.isNaN(turn) || document.getElementById(`turn-${turn}`)) return;
    const part = [...document.querySelectorAll(".later[data-turns]")].find((each) => {
      const [first, end] = each.dataset.turns.split(" ").map(Number);
      return first <= turn && turn < end;
    });
    if (!part) return;
    const address = new URL(location.href);
    address.searchParams.set("turn", String(turn));
    location.replace(address);
  };
  addEventListener("hashchange", follow);
  follow();
})();
