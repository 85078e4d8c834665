// The launch form: choices that count only with another one are hidden until it is made; folded errors are opened.
(() => {
  const form = document.querySelector("form.launch");
  if (!form) return;
  const value = (name) => new FormData(form).getAll(name).at(-1);
  const holds = (condition) => {
    const [, name, sign, wanted] = condition.match(/^([\w.]+)(!?=)(.*)$/);
    return wanted.split("|").includes(value(name)) === (sign === "=");
  };
  const show = () => {
    for (const part of form.querySelectorAll("[data-only]")) {
      const isWrong = [...part.querySelectorAll(".field-error")].some((slot) => slot.textContent.trim());
      part.hidden = !part.dataset.only.split(";").some(holds) && !isWrong;
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
