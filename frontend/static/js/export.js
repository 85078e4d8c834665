// Files of charts and tables: SVG from the same points and cells that the page shows, PNG from that SVG, CSV of a table's
// cells. Nothing is sent anywhere. A menu is `ui.export_menu`; its chart or table is the nearest one around it.
(() => {
  const NAMES = "http://www.w3.org/2000/svg";
  const SCALE = 2; // pixels of a picture per pixel of the page
  const LINE = 16;
  const style = (element) => getComputedStyle(element);
  const shown = (element) => element.checkVisibility() && element.getBoundingClientRect().width > 0;

  // Programs that read SVG do not know oklch.
  const dot = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgb = (colour) => {
    if (!/^(oklch|oklab|color|lab|lch)\(/.test(colour)) return colour;
    if (!known.has(colour)) {
      dot.clearRect(0, 0, 1, 1);
      dot.fillStyle = colour;
      dot.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = dot.getImageData(0, 0, 1, 1).data;
      known.set(colour, alpha === 255 ? `rgb(${red}, ${green}, ${blue})` : `rgba(${red}, ${green}, ${blue}, ${(alpha / 255).toFixed(3)})`);
    }
    return known.get(colour);
  };

  const draw = (width, height) => {
    const svg = document.createElementNS(NAMES, "svg");
    const add = (name, attributes, text) => {
      const element = document.createElementNS(NAMES, name);
      for (const [key, value] of Object.entries(attributes)) if (value != null) element.setAttribute(key, key === "fill" || key === "stroke" ? rgb(value) : value);
      if (text != null) element.textContent = text;
      svg.append(element);
      return element;
    };
    for (const [key, value] of Object.entries({ xmlns: NAMES, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": style(document.body).fontFamily, "font-size": 12 })) svg.setAttribute(key, value);
    add("rect", { width, height, fill: style(document.querySelector(".sheet") ?? document.body).backgroundColor });
    return { svg, add };
  };

  // A chart with its title, axes, legend and points, by the scales of the plot on the page.
  const chart = (figure) => {
    const { plot, legend } = figure.chart;
    if (!plot) return null;
    const names = [...legend.querySelectorAll("button")].filter((button) => button.getAttribute("aria-pressed") === "true");
    const width = plot.width, top = 26, rows = [];
    let at = 0;
    for (const name of names) {
      const text = [...name.querySelectorAll("span, b")].map((part) => part.textContent).join("  ");
      const wide = Math.min(width - 30, 30 + text.length * 6.6);
      if (at && at + wide > width - 8) at = 0;
      if (!at) rows.push([]);
      rows.at(-1).push({ x: 8 + at, text, line: name.querySelector("path") });
      at += wide + 8;
    }
    const { svg, add } = draw(width, top + plot.height + rows.length * LINE + 10);
    const ink = style(figure).color;
    const faint = style(figure.querySelector(".faint") ?? figure).color;
    add("text", { x: 8, y: 17, fill: ink, "font-weight": 600 }, figure.dataset.title ?? figure.querySelector("figcaption b").textContent);
    add("text", { x: width - 8, y: 17, fill: faint, "text-anchor": "end", "font-size": 11 }, figure.querySelector("figcaption .faint")?.textContent ?? "");
    const scale = devicePixelRatio;
    const box = { left: plot.bbox.left / scale, top: top + plot.bbox.top / scale, width: plot.bbox.width / scale, height: plot.bbox.height / scale };
    const id = `box-${Math.random().toString(36).slice(2)}`;
    const clip = add("clipPath", { id });
    const area = document.createElementNS(NAMES, "rect");
    for (const [key, value] of Object.entries({ x: box.left, y: box.top, width: box.width, height: box.height })) area.setAttribute(key, value);
    clip.append(area);
    const x = (value) => +(box.left + plot.valToPos(value, "x")).toFixed(2);
    const y = (value, name = "y") => +(box.top + plot.valToPos(value, name)).toFixed(2);
    plot.axes.forEach((axis, side) => (axis._splits ?? []).forEach((tick, index) => {
      const label = axis._values?.[index];
      if (tick == null || label == null) return;
      const line = colourOf(axis.grid.stroke, plot), fill = colourOf(axis.stroke, plot);
      if (side === 0) {
        add("path", { d: `M${x(tick)} ${box.top}v${box.height}`, stroke: line });
        add("text", { x: x(tick), y: box.top + box.height + 17, fill, "text-anchor": "middle", "font-size": 11 }, label);
      } else {
        add("path", { d: `M${box.left} ${y(tick)}h${box.width}`, stroke: line });
        add("text", { x: box.left - 8, y: y(tick) + 4, fill, "text-anchor": "end", "font-size": 11 }, label);
      }
    }));
    const inside = `url(#${id})`;
    const points = (series) => plot.data[0].flatMap((value, index) => {
      const own = plot.data[series][index];
      return own == null || value < plot.scales.x.min || value > plot.scales.x.max ? [] : [[x(value), y(own)]];
    });
    for (const { series: [high, low], fill } of plot.bands) {
      if (!plot.series[high].show) continue;
      const outline = [...points(high), ...points(low).reverse()];
      if (outline.length) add("polygon", { points: outline.join(" "), fill: solid(colourOf(fill, plot)), "fill-opacity": 0.15, "clip-path": inside });
    }
    plot.series.forEach((series, index) => {
      if (!index || !series.show || series.width === 0) return;
      const stroke = colourOf(series.stroke, plot);
      const drawn = points(index);
      add("polyline", { points: drawn.join(" "), fill: "none", stroke, "stroke-width": series.width, "stroke-opacity": series.alpha, "stroke-dasharray": series.dash?.join(" "), "stroke-linejoin": "round", "clip-path": inside });
      if (drawn.length < 40 && series.alpha === 1) for (const [cx, cy] of drawn) add("circle", { cx, cy, r: 2.2, fill: stroke, "clip-path": inside });
    });
    rows.forEach((row, number) => row.forEach((entry) => {
      const level = top + plot.height + number * LINE + 12;
      add("path", { d: `M${entry.x} ${level - 4}h14`, stroke: style(entry.line).stroke, "stroke-width": 2.5, "stroke-dasharray": style(entry.line).strokeDasharray.replaceAll("px", "").replace("none", "") || null });
      add("text", { x: entry.x + 20, y: level, fill: ink }, entry.text);
    }));
    return svg;
  };
  const colourOf = (value, plot) => typeof value === "function" ? value(plot, 1) : value;
  // of color-mix(in srgb, COLOR 15%, transparent), which programs that read SVG do not know
  const solid = (fill) => /color-mix\(in srgb, (.*) \d+%, transparent\)/.exec(fill)?.[1] ?? fill;

  // A table as it is on the page: the text of its cells, its rules, and drawings in its cells.
  const table = (element) => {
    const whole = element.getBoundingClientRect();
    const { svg, add } = draw(Math.ceil(whole.width) + 16, Math.ceil(whole.height) + 16);
    const at = (box) => ({ x: box.left - whole.left + 8, y: box.top - whole.top + 8 });
    for (const row of element.rows) {
      const box = row.getBoundingClientRect();
      const { y } = at(box);
      add("path", { d: `M8 ${y + box.height}h${whole.width}`, stroke: style(row.cells[0] ?? row).borderBottomColor });
    }
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    const range = document.createRange();
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.nodeName === "svg") { add("g", { transform: `translate(${Object.values(at(node.getBoundingClientRect())).join(" ")})` }).append(copy(node)); continue; }
      if (node.nodeType !== Node.TEXT_NODE || !node.data.trim() || node.parentElement.closest("svg") || !shown(node.parentElement)) continue;
      range.selectNodeContents(node);
      const look = style(node.parentElement);
      // one piece for each line that the text wraps into
      const lines = new Map();
      for (const word of node.data.matchAll(/\S+/g)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const box = range.getBoundingClientRect();
        const line = lines.get(Math.round(box.top)) ?? { box, words: [] };
        line.words.push(word[0]);
        lines.set(Math.round(box.top), line);
      }
      for (const { box, words } of lines.values()) add("text", { x: at(box).x, y: at(box).y + box.height * 0.78, fill: look.color, "font-size": parseFloat(look.fontSize), "font-weight": look.fontWeight, "font-family": look.fontFamily }, words.join(" "));
    }
    return svg;
  };

  // A drawing of the server, with the looks that the style sheets give it.
  const copy = (svg) => {
    const clone = svg.cloneNode(true);
    const own = [svg, ...svg.querySelectorAll("*")];
    [clone, ...clone.querySelectorAll("*")].forEach((element, index) => {
      const look = style(own[index]);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "opacity"]) element.setAttribute(name, rgb(look.getPropertyValue(name)));
    });
    clone.querySelectorAll("title").forEach((title) => title.remove());
    const { width, height } = svg.getBoundingClientRect();
    clone.setAttribute("xmlns", NAMES);
    clone.setAttribute("width", width);
    clone.setAttribute("height", height);
    return clone;
  };

  const save = (content, name) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };

  const picture = (svg, name) => {
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = Object.assign(document.createElement("canvas"), { width: svg.getAttribute("width") * SCALE, height: svg.getAttribute("height") * SCALE });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((content) => save(content, name), "image/png");
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
  };

  // A cell that a spreadsheet would read as a formula is marked as text.
  const csv = (rows) => rows.map((row) => row.map((cell) => {
    const text = `${cell ?? ""}`.trim().replace(/\s+/g, " ").replace(/^−(?=[\d.])/, "-");
    const safe = /^[=+@\t\r]|^-(?![\d.]+%?$)/.test(text) && !/^\+[\d.]+%?$/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }).join(",")).join("\r\n") + "\r\n";

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-export]");
    const menu = event.target.closest(".export");
    if (menu && event.target.closest(".menu")) menu.open = false;
    if (!button) return;
    const subject = menu.closest("[data-chart], [data-curves], .histogram") ?? menu.closest(".table-frame").querySelector("table");
    const title = subject.dataset.title || subject.getAttribute("aria-label") || subject.querySelector("figcaption b, figcaption")?.firstChild?.textContent || "table";
    const name = title.trim().replace(/[^\w.-]+/g, "-").toLowerCase().slice(0, 80) || "table";
    if (button.dataset.export === "csv") {
      const { x = [], series = [] } = subject.chart?.data ?? {};
      const rows = subject.matches("table")
        ? [...subject.rows].filter(shown).map((row) => [...row.cells].map((cell) => cell.innerText))
        : [[subject.dataset.x, ...series.map(({ label }) => label)], ...x.map((at, index) => [at, ...series.map(({ values }) => values[index])])];
      return save(new Blob([csv(rows)], { type: "text/csv" }), `${name}.csv`);
    }
    const svg = subject.matches("table") ? table(subject) : subject.chart ? chart(subject) : copy(subject.querySelector("svg"));
    if (!svg) return;
    if (button.dataset.export === "png") picture(svg, `${name}.png`);
    else save(new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" }), `${name}.svg`);
  });
})();
