// One cluster: its nodes over time, demand and capacity, cost, pending work and decisions.

import { ApiError, path, post, request } from "./api.js";
import { limitsDialog, runAction } from "./action.js";
import { lineChart, timeline } from "./charts.js";
import { amount, card, clock, dollars, duration, fixLines, h, meter, modal, number, phaseChip, plural, problem, show } from "./dom.js";
import { stateChip, tile } from "./overview.js";

const RANGES = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["All", Infinity]];
const PAGE_ROWS = 200;
const TIMELINE_ROWS = 40;
const OVER = new Set(["gone", "failed"]);

export function clusterPage(state, name) {
  const model = { detail: null, lives: new Map(), decisions: [], failures: [], samples: [] };
  const view = { range: null, resource: "", action: "", text: "", rows: PAGE_ROWS, nodeRows: TIMELINE_ROWS, seen: {} };

  const title = h("div", { class: "heading" });
  const actions = h("div", { class: "buttons toolbar" });
  const problems = h("div", {});
  const tiles = h("div", { class: "tiles" });
  const ranges = h("div", { class: "segmented", role: "group", "aria-label": "Time range" });
  const nodesOverTime = timeline();
  const moreNodes = h("div", {});
  const demand = lineChart({ label: "Demand and capacity", format: (v) => amount(view.resource, v), empty: "The controller has not sampled the cluster yet." });
  const resource = h("select", { "aria-label": "Resource", onchange: () => { view.resource = resource.value; drawTime(); } });
  const cost = lineChart({ label: "Cost so far", format: dollars, empty: "No instance of this cluster has a price." });
  const costTable = h("div", { class: "scroll" });
  const nodes = h("div", { class: "scroll" });
  const pending = h("div", {});
  const filterText = h("input", { type: "search", placeholder: "Filter decisions", "aria-label": "Filter decisions", oninput: () => { view.text = filterText.value.toLowerCase(); view.rows = PAGE_ROWS; drawDecisions(); } });
  const filterAction = h("select", { "aria-label": "Action", onchange: () => { view.action = filterAction.value; view.rows = PAGE_ROWS; drawDecisions(); } });
  const decisionCount = h("span", { class: "quiet", role: "status" });
  const decisions = h("div", { class: "scroll tall" });
  const failures = h("div", {});
  const element = h("div", { class: "clusterpage", "data-cluster": name },
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Clusters"), " / ", name),
    title, actions, problems, tiles, ranges,
    card("Nodes over time", h("div", { class: "chips legendrow" }, ["requested", "booting", "preparing", "starting", "ready", "draining", "terminating", "stopped", "failed"].map((p) => phaseChip(p))), nodesOverTime.element, moreNodes),
    h("div", { class: "columns" },
      card(h("span", { class: "withselect" }, "Demand and capacity", resource), demand.element),
      card("Cost", cost.element, costTable)),
    card("Nodes", nodes),
    card("Pending work", pending),
    card("Decisions", h("div", { class: "filters" }, filterText, filterAction, decisionCount), decisions),
    card("Failed launches and setups", failures));
  show(title, h("h1", {}, name), h("span", { class: "quiet" }, "Asking …"));

  // Draw a part only when what it shows has changed.
  function once(key, value, draw) {
    const text = JSON.stringify(value);
    if (view.seen[key] !== text) { view.seen[key] = text; draw(); }
  }

  const local = (t) => t + (model.detail?.clock_offset ?? 0);
  const now = () => Date.now() / 1000;

  function draw() {
    const d = model.detail;
    if (!d) return;
    element.classList.toggle("stale", !d.answers);
    once("title", [d.state, d.answers, d.provider], () => show(title, h("h1", {}, name), stateChip(d), h("span", { class: "quiet" }, d.provider)));
    once("actions", [d.state, state.session.read_only, d.limits], () => show(actions, buttons(d)));
    once("problems", d.problems, () => show(problems, d.problems.map(problem)));
    show(tiles, tilesOf(d));
    once("nodes", [d.nodes, state.session.read_only], () => show(nodes, nodeTable(d)));
    once("pending", [d.waiting, Math.floor(now() / 5)], () => show(pending, pendingTable(d)));
    once("cost", d.cost_rows, () => show(costTable, costRows(d)));
    drawTime();
  }

  function buttons(d) {
    if (state.session.read_only) return h("span", { class: "quiet" }, "This page is read-only.");
    const button = (text, onclick, kind = "") => h("button", { type: "button", class: kind, key: text, onclick }, text);
    const isUp = d.state === "up" || d.state === "starting";
    return [
      isUp && d.limits.max_workers !== undefined && button("Change limits", () => limitsDialog(name, d.limits)),
      isUp && button("Ray dashboard", openDashboard),
      isUp && button("Stop", () => runAction(name, "stop", "Stop")),
      d.state === "stopped" && button("Start", () => runAction(name, "start", "Start"), "primary"),
      d.state !== "down" && button("Terminate", () => runAction(name, "down", "Terminate"), "danger"),
    ].filter(Boolean);
  }

  async function openDashboard() {
    const dialog = modal("Ray dashboard", h("p", {}, "Opening it in your browser …"));
    try {
      await post(path("clusters", name, "dashboard"));
      dialog.close();
    } catch (error) {
      dialog.append(problem(error instanceof ApiError ? error.error : { what: String(error) }));
    }
  }

  function tilesOf(d) {
    const ready = d.nodes.filter((n) => n.phase === "ready").length;
    const cpu = d.usage.CPU, gpu = d.usage.GPU;
    const waiting = d.waiting.reduce((sum, row) => sum + row.count, 0);
    return [
      tile("Nodes ready", `${ready} of ${d.nodes.length}`, d.limits.max_workers === undefined ? "" : `at most ${plural(d.limits.max_workers, "worker")}`),
      cpu && tile("CPU in use", `${number(cpu[0])} / ${number(cpu[1])}`),
      gpu && tile("GPU in use", `${number(gpu[0])} / ${number(gpu[1])}`),
      tile("Pending", number(waiting), waiting ? "tasks, actors and gangs" : "nothing waits"),
      tile("Now", d.price_per_hour || !d.priced ? `${d.priced ? "" : "≥ "}${dollars(d.price_per_hour)}/h` : "free"),
      d.cost !== null && tile("So far", dollars(d.cost)),
      d.autostop_at && tile("Autostop in", duration(local(d.autostop_at) - now()), "if it stays unused"),
      !d.answers && tile("Last heard of", `${duration(now() - d.at)} ago`),
    ].filter(Boolean);
  }

  function nodeTable(d) {
    if (!d.nodes.length) return h("p", { class: "quiet" }, d.state === "down" ? "The cluster is not up." : "No nodes.");
    const rows = d.nodes.map((n) => h("tr", { "data-node": n.name },
      h("td", {}, h("b", {}, n.name), h("div", { class: "quiet" }, n.address)),
      h("td", {}, n.node_type, h("div", { class: "quiet" }, [n.market, n.zone].filter(Boolean).join(" "))),
      h("td", {}, phaseChip(n.phase), n.detail && h("div", { class: "quiet" }, n.detail)),
      h("td", { class: "usage" }, usageBars(n.usage)),
      h("td", { class: "num" }, n.created ? ageOf(local(n.created)) : ""),
      h("td", { class: "num" }, n.price_per_hour === null ? "" : `${dollars(n.price_per_hour)}/h`),
      h("td", { class: "rowbuttons" },
        h("button", { type: "button", class: "small", key: `log ${n.id}`, onclick: () => showLog(n.name) }, "Log"),
        n.role === "worker" && n.phase === "ready" && !state.session.read_only &&
          h("button", { type: "button", class: "small", key: `drain ${n.id}`, onclick: () => runAction(name, "drain", `Drain ${n.name}`, { node: n.name }) }, "Drain"))));
    return table(["Node", "Type", "Phase", "In use", ">Age", ">Price", ""], rows);
  }

  function ageOf(created) {
    const span = h("span", { class: "age", "data-created": created }, duration(now() - created));
    return span;
  }

  async function showLog(node) {
    const text = h("pre", { class: "log", tabindex: 0 }, "Reading …");
    modal(`Log of ${node}`, text);
    try {
      const reply = await request(`${path("clusters", name, "log")}?node=${encodeURIComponent(node)}`);
      text.textContent = await reply.text() || "The node has printed nothing.";
      text.scrollTop = text.scrollHeight;
    } catch (error) {
      text.replaceWith(problem(error instanceof ApiError ? error.error : { what: String(error) }));
    }
  }

  function pendingTable(d) {
    if (!d.waiting.length) return h("p", { class: "quiet" }, "Nothing waits.");
    return h("div", { class: "scroll" }, table(["Waits", ">Since", "What becomes of it"], d.waiting.map((row) => h("tr", {},
      h("td", {}, h("b", {}, `${number(row.count)} × ${row.subject}`)),
      h("td", { class: "num" }, duration(now() - local(row.since))),
      h("td", {}, row.outlook, row.fix && fixLines(row.fix))))));
  }

  function costRows(d) {
    if (!d.cost_rows.some((row) => row.cost !== null)) return null;
    return table(["Node type", "Market", ">Instances", ">Hours", ">Cost"], d.cost_rows.map((row) => h("tr", {},
      h("td", {}, row.node_type), h("td", {}, row.market), h("td", { class: "num" }, number(row.instances)),
      h("td", { class: "num" }, number(row.hours)), h("td", { class: "num" }, row.cost === null ? "no price" : `${row.complete ? "" : "≥ "}${dollars(row.cost)}`))));
  }

  function drawTime() {
    const end = now();
    const starts = [model.samples[0]?.at, ...[...model.lives.values()].map((l) => l.spans[0]?.at), ...(model.detail?.cost_curves ?? []).map((c) => c.points[0]?.[0])].filter((t) => t !== undefined);
    const first = starts.length ? local(Math.min(...starts)) : end - 60;
    const age = end - first;
    const chosen = view.range ?? (age > 3600 ? 3600 : Infinity);
    show(ranges, RANGES.map(([text, seconds]) => h("button", { type: "button", key: text, "aria-pressed": String(seconds === chosen), onclick: () => { view.range = seconds; drawTime(); } }, text)));
    const from = chosen === Infinity ? Math.min(first, end - 30) : end - chosen;
    drawTimeline(from, end);
    drawDemand(from, end);
    const colours = ["c1", "c2", "c3", "c4", "c5", "c6"];
    cost.set({ from, to: end, series: (model.detail?.cost_curves ?? []).map((curve, i) => ({
      name: [curve.node_type, curve.market].filter(Boolean).join(" "), colour: colours[i % 6], points: curve.points, area: true })) });
  }

  function drawTimeline(from, end) {
    const all = [...model.lives.values()].map((life) => {
      const spans = life.spans.map((span, i) => {
        const next = life.spans[i + 1];
        const isEnd = span.phase === "gone";
        return { phase: span.phase, text: span.detail, from: local(span.at), to: next ? local(next.at) : isEnd ? local(span.at) : end };
      }).filter((span) => span.phase !== "gone");
      const last = spans[spans.length - 1];
      return { ...life, spans, last: last?.to ?? 0, first: spans[0]?.from ?? 0 };
    }).filter((life) => life.last >= from && life.first <= end)
      .sort((a, b) => (b.role === "head") - (a.role === "head") || b.last - a.last || a.first - b.first);
    nodesOverTime.set({ nodes: all.slice(0, view.nodeRows), from, to: end });
    once("morenodes", [all.length, view.nodeRows], () => show(moreNodes, all.length > view.nodeRows && h("button", { type: "button", key: "more", onclick: () => { view.nodeRows += 200; drawTime(); } }, `Show ${plural(all.length - view.nodeRows, "more node")}`)));
  }

  function drawDemand(from, end) {
    const names = new Set();
    for (const sample of model.samples) for (const each of [...Object.keys(sample.total), ...Object.keys(sample.pending)]) names.add(each);
    const listed = [...names].filter((n) => !n.startsWith("node:") && n !== "object_store_memory").sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    if (!listed.includes(view.resource)) view.resource = listed.includes("GPU") ? "GPU" : listed[0] ?? "";
    once("resources", listed, () => { show(resource, listed.map((n) => h("option", { value: n }, n))); });
    resource.value = view.resource;
    resource.hidden = listed.length < 2;
    const r = view.resource;
    const series = (value) => model.samples.map((sample) => [local(sample.at), value(sample)]);
    demand.set({ from, to: end, series: [
      { name: "capacity", colour: "c2", step: true, area: true, points: series((x) => x.total[r] ?? 0) },
      { name: "in use", colour: "c1", step: true, points: series((x) => x.used[r] ?? 0) },
      { name: "in use and pending", colour: "c4", step: true, dashed: true, points: series((x) => (x.used[r] ?? 0) + (x.pending[r] ?? 0)) },
    ] });
  }

  function drawDecisions() {
    const kinds = [...new Set(model.decisions.map((d) => d.action))].sort();
    once("kinds", kinds, () => { show(filterAction, h("option", { value: "" }, "all actions"), kinds.map((k) => h("option", { value: k }, k))); filterAction.value = view.action; });
    const found = [];
    for (let i = model.decisions.length - 1; i >= 0; i--) {
      const d = model.decisions[i];
      if (view.action && d.action !== view.action) continue;
      if (view.text && !`${d.action} ${d.subject} ${d.why}`.toLowerCase().includes(view.text)) continue;
      found.push(d);
    }
    decisionCount.textContent = `${found.length.toLocaleString("en-US")} of ${model.decisions.length.toLocaleString("en-US")}`;
    if (!found.length) { show(decisions, h("p", { class: "quiet" }, model.decisions.length ? "No decision matches." : "No decisions yet.")); return; }
    const rows = found.slice(0, view.rows).map((d) => h("tr", {},
      h("td", { class: "num when" }, clock(local(d.at))), h("td", {}, h("span", { class: `chip action ${d.action}` }, d.action)), h("td", {}, d.subject), h("td", {}, d.why)));
    show(decisions, table(["Time", "Action", "Subject", "Reason"], rows),
      found.length > view.rows && h("button", { type: "button", key: "more", onclick: () => { view.rows += 1000; drawDecisions(); } }, `Show more of ${found.length.toLocaleString("en-US")}`));
  }

  function drawFailures() {
    const dead = [...model.lives.values()].filter((life) => life.spans.some((span) => span.phase === "failed"));
    const rows = [
      ...dead.map((life) => {
        const span = life.spans.find((each) => each.phase === "failed");
        return { at: span.at, what: life.name, type: life.node_type, text: span.detail || life.ended, node: life.name };
      }),
      ...model.failures.map((f) => ({ at: f.at, what: f.failure, type: f.node_type, text: f.text, node: null })),
    ].sort((a, b) => b.at - a.at);
    if (!rows.length) { show(failures, h("p", { class: "quiet" }, "None.")); return; }
    show(failures, h("div", { class: "scroll" }, table(["Time", "What", "Type", "Why", ""], rows.slice(0, PAGE_ROWS).map((row) => h("tr", {},
      h("td", { class: "num when" }, clock(local(row.at))), h("td", {}, h("b", {}, row.what)), h("td", {}, row.type), h("td", {}, row.text),
      h("td", {}, row.node && h("button", { type: "button", class: "small", key: `failed ${row.node}`, onclick: () => showLog(row.node) }, "Log")))))));
  }

  const timer = setInterval(() => {
    for (const span of element.querySelectorAll(".age")) span.textContent = duration(now() - Number(span.dataset.created));
    if (model.detail) drawTime();
  }, 2000);

  return {
    element, title: name, cluster: name, close: () => clearInterval(timer),
    onCluster(detail) { model.detail = detail; draw(); },
    onHistory(news) {
      if (news.reset) Object.assign(model, { lives: new Map(), decisions: [], failures: [], samples: [] });
      for (const row of news.phases) {
        const life = model.lives.get(row.id) ?? { id: row.id, name: row.name, node_type: row.node_type, role: row.role, market: row.market, spans: [] };
        life.why = row.why || life.why;
        life.ended = OVER.has(row.phase) || row.ended ? row.ended || life.ended : "";
        life.spans.push({ phase: row.phase, at: row.at, detail: row.detail });
        model.lives.set(row.id, life);
      }
      model.decisions.push(...news.decisions);
      model.failures.push(...news.failures);
      model.samples.push(...news.samples);
      drawDecisions();
      drawFailures();
      drawTime();
    },
  };
}

const rank = (name) => ({ GPU: 0, CPU: 1, memory: 3 }[name] ?? 2);

function usageBars(usage) {
  const shown = Object.entries(usage).filter(([r]) => !r.startsWith("node:") && r !== "object_store_memory").sort((a, b) => rank(a[0]) - rank(b[0]));
  return shown.map(([r, [used, total]]) => {
    const text = `${amount(r, used)} of ${amount(r, total)} ${r}`;
    return h("div", { class: "usagerow" }, meter(used, total, text), h("small", {}, text));
  });
}

// A header that begins with ">" is for numbers.
export function table(header, rows) {
  const heads = header.map((text) => (typeof text === "string" && text.startsWith(">") ? h("th", { scope: "col", class: "num" }, text.slice(1)) : h("th", { scope: "col" }, text)));
  return h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows));
}
