// Transcripts: views of observations or only the text that the policy read, on this and later pages.
(() => {
  const root = document.documentElement;
  const isText = () => root.dataset.transcripts === "text";
  const apply = (scope = document) => {
    for (const button of scope.querySelectorAll("[data-policy-text]")) {
      button.setAttribute("aria-pressed", String(isText()));
    }
    for (const text of isText() ? scope.querySelectorAll(".transcript .policy-text") : []) text.open = true;
  };
  const choose = (mode) => {
    root.dataset.transcripts = mode;
    for (const text of document.querySelectorAll(".transcript .policy-text:not([data-marked])")) text.open = isText();
    apply();
  };

  try { root.dataset.transcripts = localStorage.getItem("transcripts") ?? "views"; } catch { /* no storage: views */ }
  apply();
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-policy-text]")) return;
    choose(isText() ? "views" : "text");
    try { localStorage.setItem("transcripts", root.dataset.transcripts); } catch { /* for this page only */ }
  });
  document.addEventListener("htmx:after:swap", () => apply());
})();
