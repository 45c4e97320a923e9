// All clusters at a glance.

import { get } from "./api.js";
import { sparkline } from "./charts.js";
import { card, dollars, duration, h, meter, number, phaseChip, plural, problem, show } from "./dom.js";

const ORDER = { up: 0, starting: 1, terminating: 2, unknown: 3, stopped: 4, down: 5 };

export function overview(state) {
  const totals = h("div", { class: "tiles" });
  const grid = h("div", { class: "grid" });
  const account = h("div", {});
  const button = h("button", { type: "button", onclick: () => listAccount(account, button) }, "Show all regions");
  const element = h("div", {},
    h("div", { class: "heading" }, h("h1", {}, "Clusters"), button),
    totals, grid, account);
  const drawn = new Map();

  function update() {
    const clusters = [...state.clusters.values()].sort((a, b) =>
      ORDER[a.state] - ORDER[b.state] || a.cluster.localeCompare(b.cluster));
    const isComplete = clusters.every((c) => c.priced);
    show(totals,
      tile("Clusters up", number(clusters.filter((c) => c.state === "up" && c.answers).length), `of ${clusters.length} known here`),
      tile("Nodes", number(sum(clusters, (c) => c.nodes)), `${number(sum(clusters, (c) => c.phases.ready ?? 0))} ready`),
      tile("Now", `${isComplete ? "" : "≥ "}${dollars(sum(clusters, (c) => c.price_per_hour))}/h`, "at list prices"),
      tile("So far", dollars(sum(clusters, (c) => c.cost ?? 0)), "since their first instances"));
    if (!clusters.length) {
      show(grid, card(null, h("p", {}, "No cluster is known on this machine yet."),
        h("p", {}, "Start one here with ", h("code", {}, "shoal up"), ", or your own with ", h("code", {}, "shoal up cluster.yaml"), ".")));
      return;
    }
    const cards = clusters.map((cluster) => {
      const text = JSON.stringify(cluster);
      const before = drawn.get(cluster.cluster);
      if (before?.text === text && !cluster.autostop_at) return before.element;
      const made = clusterCard(cluster);
      drawn.set(cluster.cluster, { text, element: made });
      return made;
    });
    const isSame = grid.childElementCount === cards.length && cards.every((c, i) => grid.children[i] === c);
    if (!isSame) show(grid, cards);
  }

  const timer = setInterval(update, 5000); // the countdowns
  update();
  return { element, title: "Shoal", onClusters: update, close: () => clearInterval(timer) };
}

export function tile(name, value, note = "") {
  return h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value), note && h("small", {}, note));
}

function clusterCard(c) {
  const classes = ["card", "cluster", c.answers ? "" : "stale"].join(" ");
  const cpu = c.usage.GPU ?? c.usage.CPU;
  const name = c.usage.GPU ? "GPU" : "CPU";
  return h("article", { class: classes, "data-cluster": c.cluster },
    h("div", { class: "cardhead" },
      h("h2", {}, h("a", { href: `#/clusters/${encodeURIComponent(c.cluster)}`, key: c.cluster }, c.cluster)),
      stateChip(c)),
    h("p", { class: "quiet" }, c.provider || "…", c.nodes ? ` · ${plural(c.nodes, "node")}` : ""),
    c.nodes > 0 && phaseBar(c.phases),
    h("div", { class: "facts" },
      cpu && h("div", {}, h("span", {}, name), h("b", {}, `${number(cpu[0])} / ${number(cpu[1])}`), meter(cpu[0], cpu[1], `${number(cpu[0])} of ${number(cpu[1])} ${name} in use`)),
      c.state !== "unknown" && c.state !== "down" && h("div", {}, h("span", {}, "Now"), h("b", {}, c.price_per_hour || !c.priced ? `${c.priced ? "" : "≥ "}${dollars(c.price_per_hour)}/h` : "free")),
      c.cost !== null && h("div", {}, h("span", {}, "So far"), h("b", {}, dollars(c.cost))),
      c.waiting > 0 && h("div", {}, h("span", {}, "Pending"), h("b", {}, number(c.waiting))),
      c.autostop_at && h("div", {}, h("span", {}, "Autostop in"), h("b", {}, duration(c.autostop_at - Date.now() / 1000))),
      c.trend.length > 1 && h("div", { class: "trend" }, h("span", {}, "Nodes"), sparkline(c.trend))),
    c.problems.map(problem));
}

export function stateChip(c) {
  const text = !c.answers ? "does not answer" : c.state === "unknown" ? "asking …" : c.state === "down" ? "not up" : c.state;
  return h("span", { class: `chip state ${c.answers ? c.state : "silent"}` }, text);
}

export function phaseBar(phases) {
  const total = sum(Object.values(phases), (n) => n);
  const label = Object.entries(phases).map(([phase, n]) => `${n} ${phase}`).join(", ");
  const bar = h("div", { class: "phasebar", role: "img", "aria-label": label });
  for (const [phase, count] of Object.entries(phases)) {
    const part = h("i", { class: `phase-${phase}` });
    part.style.flexGrow = String(count / total);
    bar.append(part);
  }
  return h("div", {}, bar, h("div", { class: "chips" }, Object.entries(phases).map(([phase, n]) => phaseChip(phase, n))));
}

async function listAccount(target, button) {
  button.disabled = true;
  show(target, h("p", { class: "quiet" }, "Asking all regions of your cloud accounts …"));
  try {
    const clusters = await get("/api/account");
    const rows = clusters.map((c) => h("tr", {},
      h("td", {}, h("b", {}, c.cluster)), h("td", {}, c.provider), h("td", {}, c.made_by), h("td", { class: "num" }, number(c.nodes)),
      h("td", {}, c.state), h("td", { class: "num" }, c.age_s === null ? "" : duration(c.age_s)),
      h("td", { class: "num" }, `${c.complete ? "" : "≥ "}${dollars(c.price_per_hour)}/h`)));
    const table = h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Cluster", "Where", "By", "Nodes", "State", "Age", "Now"].map((t) => h("th", { scope: "col", class: ["Nodes", "Age", "Now"].includes(t) && "num" }, t)))),
      h("tbody", {}, rows)));
    show(target, card("All regions", rows.length ? table : h("p", {}, "No clusters in your accounts.")));
  } catch (error) {
    show(target, card("All regions", problem(error.error ?? { what: String(error) })));
  }
  button.disabled = false;
}

const sum = (list, value) => list.reduce((total, each) => total + value(each), 0);
