// Jobs, sweeps and trainings, with logs that follow.

import { ApiError, follow, get, path, request } from "./api.js";
import { lineChart, scatter } from "./charts.js";
import { table } from "./cluster.js";
import { card, clock, dollars, duration, h, meter, modal, number, plural, problem, show } from "./dom.js";

const REFRESH_MS = 4000;
const MAX_LOG = 500_000;

// Load again and again while the page is shown.
function repeat(load) {
  const stop = new AbortController();
  (async () => {
    while (!stop.signal.aborted) {
      if (!document.hidden) await load(stop.signal).catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
    }
  })();
  return () => stop.abort();
}

const errorOf = (error) => problem(error instanceof ApiError ? error.error : { what: String(error.message ?? error) });

function picker(state, chosen, base) {
  const select = h("select", { "aria-label": "Cluster", onchange: () => { location.hash = `${base}/${encodeURIComponent(select.value)}`; } });
  function update() {
    const names = [...state.clusters.values()].filter((c) => c.state === "up" || c.cluster === chosen).map((c) => c.cluster).sort();
    const text = names.join("\n");
    if (select.dataset.names === text) return;
    select.dataset.names = text;
    show(select, !chosen && h("option", { value: "", disabled: true }, "Choose a cluster"), names.map((n) => h("option", { value: n }, n)));
    select.value = chosen ?? "";
    if (!chosen && names.length) location.replace(`${base}/${encodeURIComponent(names[0])}`);
  }
  return { select, update };
}

const NO_CLUSTER = () => h("p", { class: "quiet" }, "No cluster is up.");

export function jobsPage(state, cluster) {
  const { select, update } = picker(state, cluster, "#/jobs");
  const list = h("div", {}, NO_CLUSTER());
  const element = h("div", {}, h("div", { class: "heading" }, h("h1", {}, "Jobs"), select), card(null, list));
  const stop = cluster ? repeat(async (signal) => {
    try {
      const jobs = await get(path("clusters", cluster, "jobs"), signal);
      show(list, jobs.length ? h("div", { class: "scroll" }, table(["Job", "State", "Command", ">Started", ">Took", ""], jobs.map(row))) : h("p", { class: "quiet" }, "No jobs yet. Start one: shoal job submit"));
    } catch (error) { if (!signal.aborted) show(list, errorOf(error)); }
  }) : () => {};
  if (cluster) show(list, h("p", { class: "quiet" }, "Asking …"));

  function row(job) {
    const end = job.ended ?? Date.now() / 1000;
    return h("tr", {}, h("td", {}, h("b", {}, job.id)), h("td", {}, workState(job.status.toLowerCase()), job.message && job.status === "FAILED" && h("div", { class: "quiet clip" }, job.message)),
      h("td", {}, h("code", { class: "clip" }, job.entrypoint)), h("td", { class: "num" }, job.started ? clock(job.started) : ""), h("td", { class: "num" }, job.started ? duration(end - job.started) : ""),
      h("td", {}, h("button", { type: "button", class: "small", key: job.id, onclick: () => logDialog(`Log of ${job.id}`, path("clusters", cluster, "jobs", job.id, "log")) }, "Log")));
  }
  update();
  return { element, title: "Jobs", onClusters: update, close: stop };
}

function workState(text) {
  return h("span", { class: `chip work ${text}` }, text);
}

// A log that goes on while its source does; it scrolls along unless the reader has scrolled up.
function logDialog(title, source) {
  const text = h("pre", { class: "log", tabindex: 0, role: "log" });
  const note = h("p", { class: "quiet" }, "Following …");
  const stop = new AbortController();
  const dialog = modal(title, text, note);
  dialog.classList.add("wide");
  dialog.addEventListener("close", () => stop.abort());
  follow(source, (piece) => {
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    text.append(piece);
    if (text.textContent.length > MAX_LOG) text.textContent = text.textContent.slice(-MAX_LOG / 2);
    if (isAtEnd) text.scrollTop = text.scrollHeight;
  }, stop.signal).then(
    () => { note.textContent = text.textContent ? "This is the end of the log." : "Nothing was printed."; },
    (error) => { if (!stop.signal.aborted) note.replaceWith(errorOf(error)); });
}

export function sweepsPage(state, id) {
  if (id) return sweepPage(id);
  const list = h("div", {}, h("p", { class: "quiet" }, "Reading …"));
  const element = h("div", {}, h("div", { class: "heading" }, h("h1", {}, "Sweeps")), card(null, list));
  const stop = repeat(async (signal) => {
    try {
      const sweeps = await get("/api/sweeps", signal);
      show(list, sweeps.length ? h("div", { class: "scroll" }, table(["Sweep", "Script", "Cluster", ">Started", ">Runs", ">Failed", "Directory"], sweeps.map((sweep) => h("tr", {},
        h("td", {}, h("a", { href: `#/sweeps/${encodeURIComponent(sweep.id)}`, key: sweep.id }, sweep.id)), h("td", {}, h("code", {}, sweep.script)), h("td", {}, sweep.cluster), h("td", { class: "num" }, clock(sweep.created)),
        h("td", { class: "num" }, `${sweep.done} of ${sweep.runs}`), h("td", { class: "num" }, number(sweep.failed)), h("td", { class: "quiet" }, sweep.directory)))))
        : h("p", { class: "quiet" }, "No sweep was started on this machine. Start one: shoal sweep"));
    } catch (error) { if (!signal.aborted) show(list, errorOf(error)); }
  });
  return { element, title: "Sweeps", close: stop };
}

function sweepPage(id) {
  const view = { x: "", y: "", sort: "run", down: false, seen: "" };
  const note = h("p", { class: "quiet" }, "Reading …");
  const x = h("select", { "aria-label": "Parameter", onchange: () => { view.x = x.value; draw(); } });
  const y = h("select", { "aria-label": "Metric", onchange: () => { view.y = y.value; draw(); } });
  const plot = scatter({ label: id });
  const results = h("div", { class: "scroll" });
  const element = h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/sweeps" }, "Sweeps"), " / ", id), h("div", { class: "heading" }, h("h1", {}, id)), note,
    card(h("span", { class: "withselect" }, y, "over", x), plot.element), card("Runs", results));
  let sweep = null;

  function draw() {
    if (!sweep) return;
    note.textContent = `${sweep.script} · ${sweep.done} of ${plural(sweep.runs, "run")} done, ${sweep.failed} failed${sweep.cluster ? ` · on ${sweep.cluster}` : ""} · ${sweep.directory}`;
    view.x = sweep.parameters.includes(view.x) ? view.x : sweep.parameters[0] ?? "";
    view.y = sweep.metrics.includes(view.y) ? view.y : sweep.metrics[0] ?? "";
    show(x, sweep.parameters.map((n) => h("option", { value: n }, n))); x.value = view.x;
    show(y, sweep.metrics.map((n) => h("option", { value: n }, n))); y.value = view.y;
    const points = sweep.results.filter((r) => Number.isFinite(r.params[view.x]) && Number.isFinite(r.metrics[view.y]))
      .map((r) => ({ x: r.params[view.x], y: r.metrics[view.y], text: `run ${r.run}: ${Object.entries(r.params).map(([k, v]) => `${k}=${v}`).join(", ")} → ${view.y} ${number(r.metrics[view.y])}` }));
    plot.set({ points, xName: view.x, yName: view.y });
    const value = (r) => view.sort in r.metrics ? r.metrics[view.sort] : view.sort in r ? r[view.sort] : r.params[view.sort];
    const sorted = [...sweep.results].sort((a, b) => {
      const [p, q] = [value(a), value(b)];
      const order = p === undefined ? 1 : q === undefined ? -1 : p < q ? -1 : p > q ? 1 : 0;
      return view.down ? -order : order;
    });
    const metrics = sweep.metrics.slice(0, 6);
    const heads = ["run", ...sweep.parameters, ...metrics, "seconds", "status"].map((n) => h("button", { type: "button", class: "sort", key: `sort ${n}`, onclick: () => { view.down = view.sort === n && !view.down; view.sort = n; draw(); } }, n, view.sort === n ? (view.down ? " ↓" : " ↑") : ""));
    show(results, table([...heads, ""], sorted.slice(0, 1000).map((r) => h("tr", {},
      h("td", { class: "num" }, r.run), sweep.parameters.map((n) => h("td", {}, String(r.params[n] ?? ""))), metrics.map((n) => h("td", { class: "num" }, n in r.metrics ? number(r.metrics[n]) : "")),
      h("td", { class: "num" }, number(r.seconds)), h("td", {}, workState(r.status), r.why && h("div", { class: "quiet clip" }, r.why)),
      h("td", {}, h("button", { type: "button", class: "small", key: `run ${r.run}`, onclick: () => logDialog(`Run ${r.run}`, path("sweeps", id, "runs", r.run, "log")) }, "Log"))))));
  }
  const stop = repeat(async (signal) => {
    try {
      const next = await get(path("sweeps", id), signal);
      const text = JSON.stringify(next);
      if (text !== view.seen) { view.seen = text; sweep = next; draw(); }
    } catch (error) { if (!signal.aborted) show(results, errorOf(error)); }
  });
  return { element, title: id, close: stop };
}

export function trainingsPage(state, cluster, job) {
  if (job) return trainingPage(cluster, job);
  const { select, update } = picker(state, cluster, "#/trainings");
  const list = h("div", {}, cluster ? h("p", { class: "quiet" }, "Asking …") : NO_CLUSTER());
  const element = h("div", {}, h("div", { class: "heading" }, h("h1", {}, "Trainings"), select), card(null, list));
  const stop = cluster ? repeat(async (signal) => {
    try {
      const jobs = await get(path("clusters", cluster, "trainings"), signal);
      show(list, jobs.length ? h("div", { class: "scroll" }, table(["Training", "State", "Script", ">Started", ">Epoch", ">Step", ">Workers", ">Batch size", ">Samples/s"], jobs.map((j) => h("tr", {},
        h("td", {}, h("a", { href: `#/trainings/${encodeURIComponent(cluster)}/${encodeURIComponent(j.job)}`, key: j.job }, j.job)), h("td", {}, workState(j.state)), h("td", {}, h("code", {}, j.script)), h("td", { class: "num" }, clock(j.created)),
        ["epoch", "step", "workers", "batch_size", "throughput"].map((k) => h("td", { class: "num" }, j[k] === undefined ? "" : number(j[k])))))))
        : h("p", { class: "quiet" }, "No trainings yet. Start one: shoal train"));
    } catch (error) { if (!signal.aborted) show(list, errorOf(error)); }
  }) : () => {};
  update();
  return { element, title: "Trainings", onClusters: update, close: stop };
}

// What a training reports over time; those that its journal does not have are left out.
const SERIES = [["workers", "Workers", true], ["batch_size", "Batch size", true], ["throughput", "Samples per second", false], ["goodput", "Goodput (samples per second)", false], ["step", "Step", false]];
const MAX_METRICS = 12;

function trainingPage(cluster, job) {
  function newChart(key, title, step, i) {
    const chart = lineChart({ label: title, height: 150 });
    const element = card(title, chart.element);
    element.hidden = true;
    return { key, title, step, chart, element, colour: `c${i % 6 + 1}` };
  }
  const charts = SERIES.map(([key, title, step], i) => newChart(key, title, step, i));
  const metrics = new Map(); // what the script reports, by name
  const columns = h("div", { class: "columns" }, charts.map((c) => c.element));
  const note = h("p", { class: "quiet" }, "Reading …");
  const model = h("div", {});
  const events = h("div", { class: "scroll tall" });
  const element = h("div", {}, h("p", { class: "crumbs" }, h("a", { href: `#/trainings/${encodeURIComponent(cluster)}` }, "Trainings"), " / ", job),
    h("div", { class: "heading" }, h("h1", {}, job), h("button", { type: "button", onclick: () => logDialog(`Output of ${job}`, path("clusters", cluster, "trainings", job, "log")) }, "Output")),
    note, columns, model, card("Rescales and other events", events));
  let seen = -1;
  const stop = repeat(async (signal) => {
    try {
      const entries = await get(path("clusters", cluster, "trainings", job), signal);
      if (entries.length === seen) return;
      seen = entries.length;
      draw(entries);
    } catch (error) { if (!signal.aborted) show(events, errorOf(error)); }
  });

  function draw(entries) {
    const progress = entries.filter((e) => e.kind === "progress" && e.time);
    const reported = entries.filter((e) => e.kind === "metrics" && e.time);
    const others = entries.filter((e) => e.kind !== "progress" && e.kind !== "metrics" && e.time);
    const marks = others.filter((e) => e.kind === "generation" || e.kind === "commit" || e.kind === "restart" || e.kind === "node_lost" || e.kind === "worker_lost").map((e) => ({ at: e.time, text: sentence(e) }));
    const from = entries.find((e) => e.time)?.time ?? 0;
    const to = entries.findLast((e) => e.time)?.time ?? 1;
    const last = progress[progress.length - 1];
    note.textContent = last ? `epoch ${last.epoch + 1}${last.epochs ? ` of ${last.epochs}` : ""}, step ${number(last.step)}, ${plural(last.workers, "worker")}, batch size ${number(last.batch_size)}` : "No progress reported yet.";
    const names = new Set(reported.flatMap((e) => Object.keys(e.values)));
    for (const name of [...names].sort().slice(0, MAX_METRICS)) {
      if (metrics.has(name)) continue;
      const made = newChart(name, name, false, charts.length + metrics.size);
      metrics.set(name, made);
      columns.append(made.element);
    }
    for (const c of [...charts, ...metrics.values()]) {
      const points = metrics.get(c.key) === c
        ? reported.filter((e) => Number.isFinite(e.values[c.key])).map((e) => [e.time, e.values[c.key]])
        : progress.filter((e) => Number.isFinite(e[c.key])).map((e) => [e.time, e[c.key]]);
      c.element.hidden = points.length === 0;
      c.chart.set({ from, to: Math.max(to, from + 1), marks, series: [{ name: c.title, colour: c.colour, points, step: c.step }] });
    }
    const decision = others.findLast((e) => e.kind === "decision" && e.sizes?.length);
    show(model, decision && modelCard(decision));
    show(events, others.length ? table(["Time", "Event", ""], others.slice(-500).reverse().map((e) => h("tr", {}, h("td", { class: "num when" }, clock(e.time)), h("td", {}, h("span", { class: "chip" }, e.kind.replaceAll("_", " "))), h("td", {}, sentence(e))))) : h("p", { class: "quiet" }, "Nothing yet."));
  }
  return { element, title: job, close: stop };
}

// What the model of the job predicts for every number of workers, and what it chooses.
function modelCard(decision) {
  const isPriced = decision.prices?.per_worker > 0;
  const price = (workers) => decision.prices.others + workers * decision.prices.per_worker;
  const best = Math.max(...decision.sizes.map((size) => size.goodput));
  const heads = ["Workers", ">Goodput", "", ">Samples/s", ">Batch size", isPriced && ">An hour", isPriced && ">A million samples"];
  const row = (size) => h("tr", { class: size.workers === decision.target ? "chosen" : null },
    h("td", {}, plural(size.workers, "worker"), size.workers === decision.current && h("span", { class: "chip" }, "now"), size.workers === decision.target && h("span", { class: "chip work succeeded" }, "chosen")),
    h("td", { class: "num" }, number(size.goodput)), h("td", {}, meter(size.goodput, best, `goodput of ${plural(size.workers, "worker")}`)),
    h("td", { class: "num" }, number(size.throughput)), h("td", { class: "num" }, number(size.batch_size)),
    isPriced && h("td", { class: "num" }, dollars(price(size.workers))),
    isPriced && h("td", { class: "num" }, size.goodput > 0 ? dollars(price(size.workers) / size.goodput / 3600 * 1e6) : "–"));
  return card("What the model chooses", [
    h("p", {}, `${decision.target === decision.current ? `It stays at ${plural(decision.current, "worker")}` : `From ${plural(decision.current, "worker")} to ${decision.target}`}: ${decision.why}.`),
    h("p", { class: "quiet" }, `Objective: ${decision.objective} · ${clock(decision.time)}`),
    h("div", { class: "scroll" }, table(heads.filter((text) => text !== false), decision.sizes.map(row)))]);
}

function sentence(e) {
  if (e.text) return e.text;
  if (e.members && e.step !== undefined) return `generation ${e.generation} at step ${e.step}: ${e.members.join(", ")} (${e.reason})`;
  if (e.path) return `checkpoint at step ${e.step}: ${e.path}`;
  if (e.why && e.worker) return `${e.worker} ended: ${e.why}`;
  if (e.status !== undefined) return `ended with status ${e.status}`;
  return e.why ?? e.reason ?? "";
}
