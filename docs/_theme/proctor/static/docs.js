// Three small comforts; every page works without them.
(() => {
  const mark = () => {
    const theme = document.documentElement.dataset.theme;
    for (const source of document.querySelectorAll("picture source")) {
      source.media = theme === "dark" ? "all" : theme === "light" ? "not all" : "(prefers-color-scheme: dark)";
    }
  };
  mark();
  document.addEventListener("proctor:theme", mark);
  // A table, or code without line breaks, that is wider than the page scrolls by keyboard too.
  for (const box of document.querySelectorAll("article pre, .table")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
  const field = document.querySelector(".finder input");
  field.value = new URLSearchParams(location.search).get("q") || "";
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
    event.preventDefault();
    field.focus();
  });
})();
