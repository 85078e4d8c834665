// One rollout: copying its record, and the arrow keys for its neighbours.
(() => {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy-of]");
    const text = button && document.getElementById(button.dataset.copyOf)?.textContent;
    if (text) navigator.clipboard?.writeText(text).then(() => { button.dataset.copied = ""; });
  });
  document.addEventListener("keydown", (event) => {
    const key = { ArrowLeft: "k", ArrowRight: "j" }[event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.repeat) return;
    if (event.target.closest("input, textarea, select, [contenteditable]") || getSelection().toString()) return;
    document.querySelector(`a[data-key="${key}"]`)?.click();
  });
})();
