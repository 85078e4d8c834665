// The launch form: choices that count only with another one are hidden until it is made; folded errors are opened.
(() => {
  const form = document.querySelector("form.launch");
  if (!form) return;
  const value = (name) => new FormData(form).getAll(name).at(-1);
  const show = () => {
    for (const part of form.querySelectorAll("[data-only]")) {
      const [name, wanted] = part.dataset.only.split("=");
      const isWrong = [...part.querySelectorAll(".field-error")].some((slot) => slot.textContent.trim());
      part.hidden = !wanted.split("|").includes(value(name)) && !isWrong;
    }
  };
  form.addEventListener("change", show);
  document.addEventListener("htmx:after:swap", () => {
    show();
    for (const slot of form.querySelectorAll("[data-error-for]")) {
      const folded = slot.textContent.trim() && slot.closest("details:not([open]):not(.help)");
      if (folded) folded.open = true;
    }
  });
  show();
})();
