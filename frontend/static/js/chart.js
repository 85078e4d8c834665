// Curves: <figure data-chart="/runs/…/points.json"> drawn by uPlot. Data is columnar:
// {x: […], series: [{label, unit, values}], cursor, replace?}. News arrive by the page's stream or, without one, by polling.
(() => {
  const vendor = new URL("../vendor/uplot-1.6.32/", document.currentScript.src).href;
  const POLL_MS = 5000;
  const ROWS = 400; // of the table of numbers
  let library;

  const load = () => library ??= new Promise((resolve, reject) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${vendor}uPlot.min.css` });
    const script = Object.assign(document.createElement("script"), { src: `${vendor}uPlot.iife.min.js`, onload: resolve, onerror: reject });
    document.head.append(sheet, script);
  });

  // light-dark() resolves only on an element, so a probe's colour is read
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.hidden = true;
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
  // As `number` of the server's formats, which sends its rule.
  const precision = JSON.parse(document.querySelector('meta[name="precision"]').content);
  const format = (value) => {
    if (value == null || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    const text = size >= precision.whole ? Math.round(value).toLocaleString("en")
      : Number.isInteger(value) ? `${value}`
      : size >= precision.small ? value.toFixed(precision.decimals)
      : size < precision.exponent ? value.toExponential(1) : `${+value.toPrecision(precision.significant)}`;
    return text.replace("-", "−");
  };

  // What a drawing shows, in words, for people who do not see it: where each curve begins, ends and has its extremes.
  const describe = (canvas, title, curves) => {
    const told = curves.map(({ label, x, values }) => {
      const points = values.flatMap((value, index) => value == null ? [] : [[x[index], value]]);
      if (!points.length) return `${label}: no points`;
      const [first, last] = [points[0], points.at(-1)].map(([at, value]) => `${format(value)} at ${format(at)}`);
      const [low, high] = points.reduce(([low, high], [, value]) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]).map(format);
      return `${label}: ${first}${points.length > 1 ? ` to ${last}, between ${low} and ${high}` : ""}`;
    });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}. ${told.slice(0, 12).join("; ")}${told.length > 12 ? `; and ${told.length - 12} more curves` : ""}`);
  };

  // An axis is as wide as its longest label, and the chart ends far enough behind its last one.
  const pen = document.createElement("canvas").getContext("2d");
  const widest = (labels) => Math.max(0, ...(labels ?? []).map((label) => pen.measureText(label ?? "").width));
  const short = (value) => value == null ? "" : Math.abs(value) >= 1e6 ? `${+(value / 1e6).toPrecision(4)} M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(4)} k` : Math.abs(value) >= 1000 ? value.toLocaleString("en") : `${+value.toPrecision(4)}`.replace("-", "−");
  const axes = (isWhole) => {
    const grid = { stroke: colour("--line"), width: 1 };
    const font = pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: colour("--ink-faint"), grid, ticks: { ...grid, size: 4 }, font };
    return [
      { ...axis, size: 30, space: 60, values: (_plot, ticks) => ticks.map((tick) => isWhole && !Number.isInteger(tick) ? "" : short(tick)) },
      { ...axis, size: (_plot, labels) => Math.ceil(widest(labels)) + 16, values: (_plot, ticks) => ticks.map(short) },
    ];
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.plotBox = figure.querySelector(".plot");
      this.legend = figure.querySelector(".legend");
      this.hidden = new Set();
      this.data = { x: [], series: [] };
      this.cursor = "";
      this.refresh();
      new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.plotBox);
      document.addEventListener("proctor:theme", () => this.draw());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
      document.addEventListener(figure.dataset.event || "points", () => this.refresh());
      if (!document.querySelector("[data-live]")) setInterval(() => document.hidden || this.refresh(), POLL_MS);
      figure.querySelector("details.numbers")?.addEventListener("toggle", () => this.table());
      figure.parentElement?.closest("details")?.addEventListener("toggle", () => this.refresh());
    }

    size() { return { width: Math.max(160, this.plotBox.clientWidth), height: +this.figure.dataset.height || 220 }; }

    // what is folded away asks for its points when it is opened
    async refresh() {
      if (!this.figure.checkVisibility()) return;
      if (this.busy) { this.again = true; return; }
      this.busy = true;
      try {
        const url = new URL(this.figure.dataset.chart, location.href);
        if (this.cursor) url.searchParams.set("after", this.cursor);
        const [answer] = await Promise.all([fetch(url, { headers: { Accept: "application/json" } }), load()]);
        if (answer.ok) this.take(await answer.json());
        else if (!this.plot) this.say("The curve could not be read.");
      } catch { if (!this.plot) this.say("The curve could not be read; the page tries again."); }
      this.busy = false;
      if (this.again) { this.again = false; this.refresh(); }
    }

    say(text) {
      const line = document.createElement("p");
      line.className = "faint";
      line.textContent = text;
      this.plotBox.replaceChildren(line);
    }

    take(news) {
      const labels = () => this.data.series.map((series) => series.label).join("\n");
      const before = labels();
      if (news.cursor != null) this.cursor = String(news.cursor);
      if (news.replace || !this.data.x.length) this.data = news;
      else this.append(news);
      if (!this.data.x?.length) { this.plot?.destroy(); this.plot = null; return this.say("No points yet."); }
      if (this.plot && before === labels()) this.plot.setData(this.columns());
      else this.draw();
      this.values(null);
      this.table();
      const title = this.figure.querySelector("figcaption b").textContent;
      if (this.plot) describe(this.plot.ctx.canvas, title, this.data.series.map((series) => ({ ...series, x: this.data.x })));
    }

    append(news) {
      const rows = new Map(this.data.x.map((x, index) => [x, index]));
      for (const series of news.series) {
        let mine = this.data.series.find((each) => each.label === series.label);
        if (!mine) this.data.series.push(mine = { ...series, values: this.data.x.map(() => null) });
        news.x.forEach((x, index) => {
          if (!rows.has(x)) {
            rows.set(x, this.data.x.push(x) - 1);
            this.data.series.forEach((each) => each.values.push(null));
          }
          if (series.values[index] != null) mine.values[rows.get(x)] = series.values[index];
        });
      }
      const order = this.data.x.map((_, index) => index).sort((a, b) => this.data.x[a] - this.data.x[b]);
      this.data.x = order.map((index) => this.data.x[index]);
      this.data.series.forEach((series) => { series.values = order.map((index) => series.values[index]); });
    }

    columns() { return [this.data.x, ...this.data.series.map((series) => series.values)]; }

    options() {
      const { low, high } = this.figure.dataset;
      const range = low === undefined && high === undefined ? undefined : (_plot, min, max) => {
        const pad = (max - min || 1) * 0.05;
        return [low === undefined ? min - pad : Math.min(+low, min), high === undefined ? max + pad : Math.max(+high, max)];
      };
      return {
        ...this.size(),
        legend: { show: false },
        padding: [10, 28, 0, 0],
        cursor: { y: false, points: { size: 7 } },
        scales: { x: { time: false }, y: range ? { range } : {} },
        axes: axes(true),
        series: [{}, ...this.data.series.map((series, index) => ({
          label: series.label,
          stroke: this.tone(index),
          alpha: series.of === undefined ? 1 : 0.45,
          width: series.of === undefined ? 1.6 : 1.2,
          dash: index >= 8 && series.of === undefined ? [5, 3] : undefined,
          show: !this.hidden.has(series.label),
          spanGaps: true,
          points: { show: series.values.filter((value) => value != null).length < 40, size: 5 },
        }))],
        bands: this.bands(),
        hooks: { setCursor: [(plot) => this.values(plot.cursor.idx)], draw: [(plot) => this.mark(plot)] },
      };
    }

    // what lies between two quantiles, in a window of levels or in an interval is filled
    bands() {
      const place = (name) => this.data.series.findIndex(({ label }) => label === name) + 1;
      return [["p90", "p10"], ["top level", "lowest level"], ["judged at most", "judged at least"]]
        .map((ends) => ends.map(place))
        .filter(([high, low]) => high && low)
        .map(([high, low]) => ({ series: [high, low], fill: `color-mix(in srgb, ${colour(`--series-${high}`)} 14%, transparent)` }));
    }

    // where something began: its interval is filled, and ends in a line with its name
    mark(plot) {
      const marks = JSON.parse(this.figure.dataset.marks || "[]");
      const { ctx, bbox } = plot;
      const place = (step) => Math.min(Math.max(plot.valToPos(step, "x", true), bbox.left), bbox.left + bbox.width);
      ctx.save();
      ctx.fillStyle = ctx.strokeStyle = colour("--bad");
      ctx.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
      ctx.setLineDash([4, 3]);
      marks.forEach(({ from, to, label }, row) => {
        const [left, right] = [place(from), place(to)];
        ctx.globalAlpha = 0.14;
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
        ctx.globalAlpha = 1;
        ctx.beginPath();
        ctx.moveTo(right, bbox.top);
        ctx.lineTo(right, bbox.top + bbox.height);
        ctx.stroke();
        const isLate = right > bbox.left + bbox.width / 2;
        ctx.textAlign = isLate ? "right" : "left";
        ctx.fillText(label, right + (isLate ? -5 : 5), bbox.top + (row + 1) * 13 * devicePixelRatio);
      });
      ctx.restore();
    }

    // a series of the run that was branched off has the colour of its counterpart
    tone(index) { return colour(`--series-${(this.data.series[index].of ?? index) % 8 + 1}`); }

    draw() {
      if (!this.data.x?.length || !window.uPlot) return;
      this.plot?.destroy();
      this.plotBox.replaceChildren();
      this.plot = new uPlot(this.options(), this.columns(), this.plotBox);
      this.plot.over.addEventListener("click", () => this.open());
      this.names();
    }

    stepUrl(index) { return this.figure.dataset.stepUrl.replace("{x}", this.data.x[index]); }

    open() {
      const index = this.plot.cursor.idx;
      if (this.figure.dataset.stepUrl && index != null) location.href = this.stepUrl(index);
    }

    names() {
      this.legend.replaceChildren(...this.data.series.map((series, index) => {
        const button = document.createElement("button");
        button.type = "button";
        button.title = `Show or hide ${series.label}`;
        button.setAttribute("aria-pressed", String(!this.hidden.has(series.label)));
        button.innerHTML = '<svg viewBox="0 0 12 12" aria-hidden="true"><path d="M0 6h12" stroke-width="2.5"/></svg><span></span><b></b>';
        button.querySelector("path").style.stroke = this.tone(index);
        if (series.of !== undefined) button.querySelector("path").style.opacity = 0.45;
        button.querySelector("span").textContent = series.label;
        button.addEventListener("click", () => this.toggle(index, button));
        return button;
      }), Object.assign(document.createElement("span"), { className: "faint" }));
      this.values(null);
    }

    toggle(index, button) {
      const { label } = this.data.series[index];
      const show = this.hidden.delete(label) || !this.hidden.add(label);
      this.plot.setSeries(index + 1, { show });
      button.setAttribute("aria-pressed", String(show));
    }

    values(index) {
      this.legend.querySelectorAll("b").forEach((slot, number) => {
        const { values = [], unit } = this.data.series[number] ?? {};
        const value = index == null ? values.findLast((each) => each != null) : values[index];
        slot.textContent = format(value) + (unit && value != null ? ` ${unit}` : "");
      });
      // which point the numbers are of: the one below the pointer, or each curve's latest
      const place = this.legend.querySelector(":scope > .faint");
      const latest = this.data.x[this.data.series[0]?.values.findLastIndex((each) => each != null)];
      const isShared = this.data.series.every(({ values }) => this.data.x[values.findLastIndex((each) => each != null)] === latest);
      const unit = this.figure.dataset.x.endsWith("step") ? "step" : this.figure.dataset.x;
      if (place) place.textContent = index != null ? `${unit} ${format(this.data.x[index])}` : isShared && latest != null ? `latest, ${unit} ${format(latest)}` : "latest of each";
    }

    table() {
      const details = this.figure.querySelector("details.numbers");
      if (!details?.open) return;
      const table = document.createElement("table");
      table.className = "data";
      table.setAttribute("aria-label", this.figure.querySelector("figcaption b").textContent);
      const line = (cells, tag) => {
        const row = document.createElement("tr");
        for (const text of cells) row.append(Object.assign(document.createElement(tag), { className: "num", textContent: text }));
        return row;
      };
      table.createTHead().append(line([this.figure.dataset.x, ...this.data.series.map((series) => series.label)], "th"));
      const body = table.createTBody();
      for (let index = this.data.x.length - 1; index >= Math.max(0, this.data.x.length - ROWS); index--) {
        const row = line([this.data.x[index], ...this.data.series.map((series) => format(series.values[index]))], "td");
        if (this.figure.dataset.stepUrl) {
          const link = Object.assign(document.createElement("a"), { href: this.stepUrl(index), textContent: this.data.x[index] });
          row.firstChild.replaceChildren(link);
        }
        body.append(row);
      }
      details.querySelector(".table-box").replaceChildren(table);
    }
  }

  const begin = (root) => {
    const figures = [...root.querySelectorAll("[data-chart]")];
    if (root.matches?.("[data-chart]")) figures.push(root);
    for (const figure of figures) figure.chart ??= new Chart(figure);
  };
  window.proctorCharts = { load, colour, format, axes, describe };
  const start = () => {
    begin(document);
    document.addEventListener("htmx:after:swap", () => begin(document));
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
