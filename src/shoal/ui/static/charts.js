// Charts as SVG. Each can be read with the pointer, with a finger, and with the arrow keys.

import { clock, duration, h, hideTooltip, number, s, showTooltip } from "./dom.js";

const LEFT = 56, RIGHT = 12, TOP = 10, BOTTOM = 24;

// A figure that is drawn again when its width changes; not while someone reads it.
function figure(height, draw) {
  const box = h("div", { class: "chart" });
  let width = 0, isRead = false, isDue = false;
  function redraw() {
    if (isRead) { isDue = true; return; }
    isDue = false;
    if (width > 40) box.replaceChildren(draw(width, typeof height === "function" ? height() : height));
  }
  new ResizeObserver(([entry]) => {
    const next = Math.floor(entry.contentRect.width);
    if (next !== width) { width = next; isRead = false; redraw(); }
  }).observe(box);
  box.addEventListener("pointerenter", () => { isRead = true; });
  box.addEventListener("pointerleave", () => { isRead = false; hideTooltip(); if (isDue) redraw(); });
  box.addEventListener("focusin", () => { isRead = true; });
  box.addEventListener("focusout", () => { isRead = false; hideTooltip(); if (isDue) redraw(); });
  return { box, redraw };
}

function ticks(top, count = 4) {
  if (!(top > 0)) return [0, 1];
  const raw = top / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const values = [];
  for (let v = 0; v < top + step * 0.999; v += step) values.push(Number(v.toPrecision(10)));
  return values;
}

function timeTicks(from, to, width, zone = new Date().getTimezoneOffset() * 60) {
  const wanted = Math.max(2, Math.floor(width / 110));
  const steps = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const step = steps.find((each) => (to - from) / each <= wanted) ?? 2592000;
  const values = [];
  for (let t = Math.ceil((from - zone) / step) * step + zone; t <= to; t += step) values.push(t);
  return values;
}

function timeLabel(t, span) {
  const date = new Date(t * 1000);
  if (span > 2 * 86400) return date.toLocaleDateString([], { month: "short", day: "numeric" });
  const options = span > 600 ? { hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  return date.toLocaleTimeString([], { ...options, hour12: false });
}

// Lines over time, or with `xFormat` over seconds since a start. Series: {name, colour, points, step, area, dashed}.
export function lineChart({ label, height = 190, format = number, xFormat = null, empty = "Nothing yet." }) {
  let data = { series: [], from: 0, to: 1 };
  const { box, redraw } = figure(height, draw);
  const legend = h("div", { class: "legend" });
  const element = h("figure", {}, legend, box);

  function draw(width, tall) {
    const { series, from, to, marks = [] } = data;
    if (!series.some((each) => each.points.length)) return h("p", { class: "quiet empty" }, empty);
    const innerWidth = width - LEFT - RIGHT, innerHeight = tall - TOP - BOTTOM;
    const shown = series.map((each) => ({ ...each, points: visible(each, from, to, innerWidth) }));
    const top = Math.max(...shown.flatMap((each) => each.points.map((p) => p[1])), 0);
    const values = ticks(top);
    const high = values[values.length - 1];
    const x = (t) => LEFT + innerWidth * (t - from) / Math.max(1e-9, to - from);
    const y = (v) => TOP + innerHeight * (1 - v / high);
    const span = to - from;
    const xs = xFormat ? timeTicks(from, to, innerWidth, 0) : timeTicks(from, to, innerWidth);
    const svg = s("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: "img", tabindex: 0, "aria-label": summary(shown, label, format) },
      values.map((v) => [
        s("line", { class: "gridline", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
        s("text", { class: "tick", x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, format(v))]),
      xs.map((t) => s("text", { class: "tick", x: Math.min(x(t), width - 24), y: tall - 6, "text-anchor": "middle" }, xFormat ? xFormat(t) : timeLabel(t, span))),
      marks.filter((m) => m.at >= from && m.at <= to).map((m) =>
        s("line", { class: "mark", x1: x(m.at), x2: x(m.at), y1: TOP, y2: tall - BOTTOM })),
      shown.map((each) => [
        each.area && each.points.length && s("path", { class: `area ${each.colour}`, d: `${trace(each, x, y)}L${x(each.points[each.points.length - 1][0])},${y(0)}L${x(each.points[0][0])},${y(0)}Z` }),
        each.points.length && s("path", { class: `line ${each.colour}${each.dashed ? " dashed" : ""}`, d: trace(each, x, y) })]));
    const cursor = s("line", { class: "cursor", y1: TOP, y2: tall - BOTTOM, x1: LEFT, x2: LEFT, visibility: "hidden" });
    svg.append(cursor);
    let at = to;
    function read(t, clientX, clientY) {
      at = Math.min(to, Math.max(from, t));
      cursor.setAttribute("visibility", "visible");
      cursor.setAttribute("x1", x(at));
      cursor.setAttribute("x2", x(at));
      const near = marks.filter((m) => Math.abs(x(m.at) - x(at)) < 6);
      showTooltip(clientX, clientY, h("b", {}, xFormat ? xFormat(at) : clock(at)),
        series.map((each) => {
          const value = valueAt(each, at);
          return value !== null && h("div", {}, h("i", { class: `dot ${each.colour}` }), ` ${each.name}: ${format(value)}`);
        }).filter(Boolean), near.map((m) => h("div", {}, m.text)));
    }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      read(from + span * (event.clientX - box.left - LEFT) / innerWidth, event.clientX, event.clientY);
    });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const box = svg.getBoundingClientRect();
      read(at + step * span / 60, box.left + x(Math.min(to, Math.max(from, at + step * span / 60))), box.top + 20);
    });
    return svg;
  }

  return {
    element,
    set(next) {
      data = next;
      legend.replaceChildren(...data.series.filter((each) => each.points.length).map((each) =>
        h("span", {}, h("i", { class: `dot ${each.colour}` }), each.name)));
      redraw();
    },
  };
}

function summary(series, label, format) {
  const parts = series.filter((each) => each.points.length).map((each) => `${each.name} ${format(each.points[each.points.length - 1][1])}`);
  return `${label}. Last values: ${parts.join(", ")}. Use the arrow keys to read others.`;
}

// The points in a range, the one before it included, and no more than one for each pixel.
function visible(each, from, to, width) {
  const points = each.points;
  let first = lastBefore(points, from);
  const part = points.slice(Math.max(0, first)).filter((p) => p[0] <= to);
  if (part.length && part[0][0] < from) part[0] = [from, each.step ? part[0][1] : valueAt(each, from)];
  if (each.step && part.length) part.push([to, part[part.length - 1][1]]);
  if (part.length <= 2 * width) return part;
  const kept = [];
  let column = -1;
  for (const point of part) {
    const here = Math.floor(width * (point[0] - from) / (to - from));
    if (here === column) kept[kept.length - 1] = point; else kept.push(point);
    column = here;
  }
  return kept;
}

function lastBefore(points, t) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= t) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function valueAt(each, t) {
  const index = lastBefore(each.points, t);
  if (index < 0) return null;
  const [at, value] = each.points[index];
  const next = each.points[index + 1];
  if (each.step || !next) return value;
  return value + (next[1] - value) * (t - at) / Math.max(1e-9, next[0] - at);
}

function trace(each, x, y) {
  let path = "";
  each.points.forEach(([t, v], i) => {
    if (i === 0) path += `M${x(t).toFixed(1)},${y(v).toFixed(1)}`;
    else if (each.step) path += `H${x(t).toFixed(1)}V${y(v).toFixed(1)}`;
    else path += `L${x(t).toFixed(1)},${y(v).toFixed(1)}`;
  });
  return path;
}

const ROW = 22;

// A row for each node, its phases as coloured bars. Nodes: {name, spans: [{phase, from, to, text}], why, ended}.
export function timeline() {
  let data = { nodes: [], from: 0, to: 1 };
  const { box, redraw } = figure(() => data.nodes.length * ROW + BOTTOM, draw);

  function draw(width, tall) {
    const { nodes, from, to } = data;
    if (!nodes.length) return h("p", { class: "quiet empty" }, "No node in this time.");
    const label = width < 520 ? 92 : 132;
    const innerWidth = width - label - RIGHT;
    const x = (t) => label + innerWidth * Math.min(1, Math.max(0, (t - from) / Math.max(1e-9, to - from)));
    const svg = s("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}` },
      timeTicks(from, to, innerWidth).map((t) => [
        s("line", { class: "gridline", x1: x(t), x2: x(t), y1: 0, y2: tall - BOTTOM }),
        s("text", { class: "tick", x: Math.min(x(t), width - 24), y: tall - 6, "text-anchor": "middle" }, timeLabel(t, to - from))]));
    nodes.forEach((node, i) => {
      const top = i * ROW;
      const spans = node.spans.filter((span) => span.to >= from && span.from <= to);
      const row = s("g", { class: "noderow", tabindex: 0, role: "img", "aria-label": `${node.name}: ${spans.map((p) => `${p.phase} for ${duration(p.to - p.from)}`).join(", ")}. ${node.why ? `Launched because: ${node.why}.` : ""} ${node.ended ? `Ended because: ${node.ended}.` : ""}` },
        s("rect", { class: "hit", x: 0, y: top, width, height: ROW }),
        s("text", { class: "rowlabel", x: label - 8, y: top + 15, "text-anchor": "end" }, short(node.name, label)),
        spans.map((span) => s("rect", { class: `bar phase-${span.phase}`, x: x(span.from), y: top + 4, width: Math.max(1.5, x(span.to) - x(span.from)), height: ROW - 8, rx: 2 })));
      const tell = (clientX, clientY, t) => showTooltip(clientX, clientY, details(node, spans, t));
      row.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect();
        tell(event.clientX, event.clientY, from + (to - from) * (event.clientX - box.left - label) / innerWidth);
      });
      row.addEventListener("focus", () => {
        const box = row.getBoundingClientRect();
        tell(box.left + label, box.top, to);
      });
      svg.append(row);
    });
    return svg;
  }
  return { element: h("figure", { class: "scroll-y" }, box), set(next) { data = next; redraw(); } };
}

function details(node, spans, t) {
  const span = spans.findLast((each) => each.from <= t) ?? spans[0];
  return [
    h("b", {}, node.name), h("span", {}, ` ${node.node_type}${node.market ? ` · ${node.market}` : ""}`),
    span && h("div", {}, h("i", { class: `dot phase-${span.phase}` }), ` ${span.phase} for ${duration(span.to - span.from)}, from ${clock(span.from)}`),
    span?.text && h("div", {}, span.text),
    node.why && h("div", {}, `Launched because: ${node.why}`),
    node.ended && h("div", {}, `Ended because: ${node.ended}`)].filter(Boolean);
}

function short(text, width) {
  const most = Math.floor((width - 10) / 7);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

export function sparkline(points, width = 96, height = 22) {
  const values = points.map((p) => p[1]);
  const top = Math.max(1, ...values), first = points[0][0], span = Math.max(1, points[points.length - 1][0] - first);
  let path = "";
  points.forEach(([t, v], i) => {
    const x = (width - 2) * (t - first) / span + 1, y = height - 2 - (height - 4) * v / top;
    path += i ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)},${y.toFixed(1)}`;
  });
  return s("svg", { class: "spark", width, height, role: "img", "aria-label": `nodes over time, ${values[values.length - 1]} now` }, s("path", { class: "line c1", d: path }));
}

// Points in two dimensions; both axes may be logarithmic. Points: {x, y, text}.
export function scatter({ label, height = 280 }) {
  let data = { points: [], xName: "", yName: "" };
  const { box, redraw } = figure(height, draw);

  function axis(values) {
    const low = Math.min(...values), high = Math.max(...values);
    const isLog = low > 0 && high / low >= 100;
    const scale = isLog ? Math.log10 : (v) => v;
    const range = scale(high) - scale(low) || 1;
    const middle = isLog ? Math.sqrt(low * high) : (low + high) / 2;
    return { at: (v) => (high === low ? 0.5 : (scale(v) - scale(low)) / range), ticks: high === low ? [low] : [low, middle, high], isLog };
  }

  function draw(width, tall) {
    const { points, xName, yName } = data;
    if (!points.length) return h("p", { class: "quiet empty" }, "No run has both values yet.");
    const bottom = 44, innerWidth = width - LEFT - 28, innerHeight = tall - TOP - bottom - 10;
    const across = axis(points.map((p) => p.x)), up = axis(points.map((p) => p.y));
    const x = (v) => LEFT + 8 + innerWidth * across.at(v), y = (v) => TOP + 6 + innerHeight * (1 - up.at(v));
    const svg = s("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role: "group", "aria-label": `${label}: ${yName} over ${xName}, ${points.length} runs` },
      up.ticks.map((v) => [s("line", { class: "gridline", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }), s("text", { class: "tick", x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, number(v))]),
      across.ticks.map((v) => s("text", { class: "tick", x: x(v), y: tall - bottom + 16, "text-anchor": "middle" }, number(v))),
      s("text", { class: "axis", x: LEFT + innerWidth / 2, y: tall - 6, "text-anchor": "middle" }, across.isLog ? `${xName} (log)` : xName));
    for (const point of points) {
      const dot = s("circle", { class: "point", cx: x(point.x), cy: y(point.y), r: 5, tabindex: 0, role: "img", "aria-label": point.text });
      const tell = (event) => {
        const box = dot.getBoundingClientRect();
        showTooltip(event.clientX ?? box.right, event.clientY ?? box.top, h("div", {}, point.text));
      };
      dot.addEventListener("pointermove", tell);
      dot.addEventListener("focus", tell);
      svg.append(dot);
    }
    return svg;
  }
  return { element: h("figure", {}, box), set(next) { data = next; redraw(); } };
}
