// Before the first paint: the person's choice of light or dark. Without one, the system decides.
(() => {
  const choices = ["", "light", "dark"];
  const stored = () => { try { return localStorage.getItem("theme") || ""; } catch { return ""; } };
  const apply = (theme) => { document.documentElement.dataset.theme = theme; };
  apply(stored());
  const draw = () => document.dispatchEvent(new Event("proctor:theme"));
  addEventListener("beforeprint", () => { apply("light"); draw(); }); // paper is light, charts included
  addEventListener("afterprint", () => { apply(stored()); draw(); });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-switch]")) return;
    const next = choices[(choices.indexOf(stored()) + 1) % choices.length];
    try { localStorage.setItem("theme", next); } catch { /* private window: for this page only */ }
    apply(next);
    draw();
  });
})();
