// Hand play: deadlines count down, Ctrl+Enter sends, and the field that was being used is ready again after an answer.
(() => {
  let wasWriting = false;

  const tick = () => {
    for (const output of document.querySelectorAll("output[data-until]")) {
      const left = (Date.parse(output.dataset.until) + 1000 * output.dataset.seconds - Date.now()) / 1000;
      if (!Number.isNaN(left)) output.textContent = left > 0 ? `${Math.ceil(left)} s more` : "no time left";
    }
  };
  setInterval(tick, 500);

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.matches("textarea, input")) return;
    const form = event.target.form;
    if (!form?.closest("[data-phase]")) return;
    event.preventDefault();
    if (!event.repeat) form.requestSubmit(); // a held key sends one reply
  });

  // The board is drawn anew while the environment answers; whoever writes replies goes on writing.
  document.addEventListener("submit", (event) => { wasWriting = Boolean(event.target.querySelector("[data-send]")); });
  const resume = () => {
    tick();
    const field = document.querySelector("#play-board [data-send]");
    if (wasWriting && field && document.activeElement === document.body) { field.value = ""; field.focus(); }
  };
  document.addEventListener("htmx:after:swap", resume);
  document.addEventListener("htmx:sse:after:message", resume);
})();
