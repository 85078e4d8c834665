// Curves of many runs: <figure data-curves="/api/v1/curves" data-runs="id id …"> with the form #chart-options. The server
// places, smooths, groups and thins the points; a zoomed range is read again. The form's state is the page's address.
(() => {
  const { load, colour, format, axes, describe } = window.proctorCharts;
  const DASHES = [undefined, [6, 4], [2, 3], [10, 4, 2, 4]];
  const NEAR = 30; // pixels from a curve
  const LEAST_PAUSE_MS = 2000; // between two readings of a live chart, and five times as long as one takes

  class Curves {
    constructor(figure) {
      this.figure = figure;
      this.form = document.getElementById("chart-options");
      this.plotBox = figure.querySelector(".plot");
      this.legend = figure.querySelector(".legend");
      this.hidden = new Set();
      this.form.addEventListener("input", (event) => this.change(event));
      this.form.addEventListener("submit", (event) => { if (!event.submitter) return; event.preventDefault(); this.refresh(); });
      figure.querySelector("[data-unzoom]").addEventListener("click", () => this.zoom("", ""));
      new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.plotBox);
      document.addEventListener("proctor:theme", () => this.draw());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
      document.addEventListener("points", () => this.hear());
      this.refresh();
    }

    size() { return { width: Math.max(240, this.plotBox.clientWidth), height: innerWidth < 800 ? 300 : 420 }; }

    change(event) {
      const { target } = event;
      if (target.dataset.reload !== undefined) {
        for (const control of this.form.elements) control.disabled ||= control.value === "";
        return this.form.submit();
      }
      if (target.name === "smoothing") this.form.querySelector("output").textContent = (+target.value).toFixed(2);
      if (target.name === "x") this.form.elements.low.value = this.form.elements.high.value = "";
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => target.name === "log" ? (this.address(), this.draw()) : this.refresh(), 150);
    }

    // the state of the form, without what is as by default
    query() {
      const plain = { smoothing: "0", x: "step", group: "false", band: "interval" };
      const kept = [...new FormData(this.form)].filter(([name, value]) => value !== "" && plain[name] !== value);
      return new URLSearchParams(kept);
    }

    address() {
      const query = this.query();
      history.replaceState(history.state, "", `${location.pathname}?${query}`);
      return query;
    }

    hear() {
      clearTimeout(this.later);
      const pause = Math.max(LEAST_PAUSE_MS, 5 * (this.took ?? 0)) - (performance.now() - (this.readAt ?? 0));
      this.later = setTimeout(() => this.refresh(), Math.max(0, pause));
    }

    async refresh() {
      if (this.busy) { this.again = true; return; }
      this.busy = true;
      const query = this.address();
      query.delete("run");
      query.delete("log");
      for (const run of this.figure.dataset.runs.split(" ")) query.append("run", run);
      const file = this.figure.querySelector("a[download]");
      if (file) file.href = `${this.figure.dataset.curves}/file?${query}`;
      const began = performance.now();
      try {
        const [answer] = await Promise.all([fetch(`${this.figure.dataset.curves}?${query}`, { headers: { Accept: "application/json" } }), load()]);
        const found = await answer.json();
        if (answer.ok) { this.data = found; this.draw(); }
        else this.note(Object.values(found.fields ?? {}).join(" ") || found.detail || "The curves could not be read.");
      } catch { this.note("The curves could not be read. Change a setting to try again."); }
      this.readAt = performance.now();
      this.took = this.readAt - began;
      this.busy = false;
      if (this.again) { this.again = false; this.refresh(); }
    }

    note(text) { this.figure.querySelector("[data-note]").textContent = text; }

    zoom(low, high) {
      this.form.elements.low.value = low;
      this.form.elements.high.value = high;
      this.refresh();
    }

    tone({ place }) { return colour(`--series-${place % 8 + 1}`); }
    dash({ place, curve }) {
      const metrics = [...new Set(this.data.curves.map((each) => each.curve))];
      return DASHES[(metrics.length > 1 ? metrics.indexOf(curve) : Math.floor(place / 8)) % DASHES.length];
    }

    draw() {
      if (!this.data || !window.uPlot) return;
      const { curves, left_out: leftOut, extent } = this.data;
      const { low, high, log } = this.form.elements;
      this.figure.querySelector("[data-x-label]").textContent = `by ${this.data.x_label}`;
      this.figure.querySelector("[data-unzoom]").hidden = low.value === "" && high.value === "";
      const { left = -1, top = -1 } = this.plot?.cursor ?? {};
      this.plot?.destroy();
      this.plot = null;
      this.plotBox.replaceChildren();
      const notes = [this.data.is_raw ? "All stored points of this range are drawn." : "Each curve keeps the lowest and highest point of each part of the range. Zoom in to see all points."];
      if (+this.form.elements.smoothing.value) notes.push("Smoothed by an exponential moving average that is weighted by distance; faint lines are the values themselves.");
      if (log.checked) notes.push("Values of zero or less have no place on a logarithmic axis.");
      const missing = new Map();
      for (const each of leftOut) missing.set(`${each.curve}: ${each.reason}`, [...missing.get(`${each.curve}: ${each.reason}`) ?? [], each.label]);
      for (const [reason, labels] of missing) notes.push(`Not drawn: ${labels.slice(0, 3).join(", ")}${labels.length > 3 ? ` and ${labels.length - 3} more` : ""} (${reason})`);
      this.note(notes.join(" "));
      if (!curves.length) { this.legend.replaceChildren(); this.plotBox.append(Object.assign(document.createElement("p"), { className: "faint", textContent: "No points yet." })); return; }

      const drawable = (values) => log.checked ? values.map((value) => value > 0 ? value : null) : values;
      const tables = [];
      const series = [{}];
      const bands = [];
      this.lines = curves.map(() => []); // positions of each curve's series, the curve itself first
      const add = (index, x, values, look) => { tables.push([x, drawable(values)]); this.lines[index].push(series.push({ spanGaps: true, points: { show: false }, ...look }) - 1); };
      curves.forEach((curve, index) => {
        const stroke = this.tone(curve);
        const show = !this.hidden.has(curve.label);
        add(index, curve.x, curve.values, { label: curve.label, stroke, width: curve.runs.length > 1 ? 2 : 1.5, dash: this.dash(curve), show, points: { show: curve.x.length < 40, size: 5 } });
        if (curve.low) {
          add(index, curve.x, curve.high, { stroke, width: 0, show });
          add(index, curve.x, curve.low, { stroke, width: 0, show });
          bands.push({ series: this.lines[index].slice(1), fill: `color-mix(in srgb, ${stroke} 15%, transparent)` });
        }
        if (curve.unsmoothed) add(index, curve.unsmoothed.x, curve.unsmoothed.values, { stroke, width: 1, alpha: 0.25, show });
      });
      const from = low.value === "" ? extent[0] : +low.value;
      const to = high.value === "" ? extent[1] : +high.value;
      const ends = from < to ? [from, to] : [from - 1, from + 1];
      this.plot = new uPlot({
        ...this.size(),
        legend: { show: false },
        padding: [10, 28, 0, 0],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => { this.zoom("", ""); return null; } } },
        scales: { x: { time: false, range: () => ends }, y: log.checked ? { distr: 3 } : {} },
        axes: axes(this.data.x !== "time"),
        series,
        bands,
        hooks: {
          setCursor: [(plot) => this.values(plot)],
          setSelect: [(plot) => {
            const { left, width } = plot.select;
            if (width > 2) this.zoom(+plot.posToVal(left, "x").toPrecision(6), +plot.posToVal(left + width, "x").toPrecision(6));
          }],
        },
      }, uPlot.join(tables), this.plotBox);
      this.plot.over.addEventListener("click", () => this.open());
      this.tip = this.plot.over.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
      describe(this.plot.ctx.canvas, this.figure.querySelector("figcaption b").textContent, curves);
      this.names();
      if (left >= 0) this.plot.setCursor({ left, top }); // the pointer is where it was
    }

    names() {
      this.legend.replaceChildren(...this.data.curves.map((curve, index) => {
        const button = document.createElement("button");
        button.type = "button";
        button.title = curve.label;
        button.setAttribute("aria-pressed", String(!this.hidden.has(curve.label)));
        button.innerHTML = '<svg viewBox="0 0 18 12" aria-hidden="true"><path d="M0 6h18" stroke-width="2.5"/></svg><span></span><b></b>';
        const line = button.querySelector("path");
        line.style.stroke = this.tone(curve);
        const dash = this.dash(curve);
        if (dash) line.style.strokeDasharray = dash.join(" ");
        button.querySelector("span").textContent = curve.label;
        button.addEventListener("click", () => {
          const show = this.hidden.delete(curve.label) || !this.hidden.add(curve.label);
          for (const line of this.lines[index]) this.plot.setSeries(line, { show });
          button.setAttribute("aria-pressed", String(show));
        });
        return button;
      }));
      this.values(this.plot);
    }

    // the point of a curve that is nearest to x; none beyond its ends
    at(curve, x, slack) {
      let [low, high] = [0, curve.x.length - 1];
      if (high < 0 || x < curve.x[0] - slack || x > curve.x[high] + slack) return null;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (curve.x[middle] > x) high = middle; else low = middle;
      }
      return x - curve.x[low] < curve.x[high] - x ? low : high;
    }

    values(plot) {
      const { left, top } = plot.cursor;
      const isOver = left >= 0;
      const x = isOver ? plot.posToVal(left, "x") : null;
      const slack = (plot.scales.x.max - plot.scales.x.min) / 100;
      this.near = null;
      const slots = this.legend.querySelectorAll("button");
      this.data.curves.forEach((curve, index) => {
        const point = isOver ? this.at(curve, x, slack) : curve.x.length - 1;
        const value = point == null ? null : curve.values[point];
        slots[index].querySelector("b").textContent = format(value);
        if (!isOver || value == null || this.hidden.has(curve.label)) return;
        const away = Math.hypot(plot.valToPos(value, "y") - top, plot.valToPos(curve.x[point], "x") - left);
        if (away < (this.near?.away ?? NEAR)) this.near = { away, curve, point, index };
      });
      slots.forEach((slot, index) => slot.toggleAttribute("data-near", index === this.near?.index));
      this.tip.hidden = !this.near;
      plot.over.style.cursor = this.near?.curve.runs.length === 1 ? "pointer" : "";
      if (!this.near) return;
      const { curve, point } = this.near;
      const band = curve.low?.[point] == null ? "" : `, ${format(curve.low[point])} to ${format(curve.high[point])}`;
      this.tip.textContent = `${curve.label}: ${format(curve.values[point])}${band} at step ${format(curve.steps[point])}`;
      const isLate = left > plot.over.clientWidth / 2;
      Object.assign(this.tip.style, { left: isLate ? "" : `${left + 12}px`, right: isLate ? `${plot.over.clientWidth - left + 12}px` : "", top: `${Math.max(0, top - 32)}px` });
    }

    // a group has several runs, whose rollouts are apart
    open() {
      const { curve, point } = this.near ?? {};
      if (curve?.runs.length !== 1 || curve.curve.startsWith("sft/")) return;
      const phase = curve.curve.startsWith("heldout/") ? "&phase=heldout" : "";
      location.href = `/runs/${curve.runs[0]}/rollouts?step=${curve.steps[point]}${phase}`;
    }
  }

  const start = () => document.querySelectorAll("[data-curves]").forEach((figure) => { figure.chart ??= new Curves(figure); });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
