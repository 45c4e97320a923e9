// A cluster file and a trace, simulated with two policies at once.

import { ApiError, post } from "./api.js";
import { lineChart } from "./charts.js";
import { table } from "./cluster.js";
import { card, dollars, duration, h, number, problem, show } from "./dom.js";

const CLUSTER = `cluster_name: example
provider: {type: aws, region: us-west-2}
max_workers: 40
idle_timeout_minutes: 5
available_node_types:
  head: {node_config: {InstanceType: m5.large}, resources: {CPU: 2}}
  cpu:
    node_config: {InstanceType: m5.2xlarge}
    resources: {CPU: 8}
    max_workers: 40
head_node_type: head
`;
const TRACE = [0, 900, 1800, 3600, 5400, 9000].map((at, i) => JSON.stringify({ at, resources: { CPU: 1 }, count: [40, 120, 8, 200, 20, 90][i], seconds: 240 })).join("\n");

export function simulationPage() {
  const cluster = h("textarea", { rows: 13, spellcheck: "false", name: "cluster" });
  const trace = h("textarea", { rows: 13, spellcheck: "false", name: "trace" });
  cluster.value = CLUSTER;
  trace.value = TRACE;
  const changes = h("input", { name: "changes", value: "idle_timeout_minutes=1", placeholder: "idle_timeout_minutes=1,max_workers=20" });
  const boot = h("input", { type: "number", min: 0, value: 90, name: "boot" });
  const interruptions = h("input", { type: "number", min: 0, step: "any", value: 0, name: "interruptions" });
  const out = h("div", {});
  const button = h("button", { class: "primary" }, "Simulate");
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); run(); } },
    h("div", { class: "columns" },
      card("Cluster file", upload(cluster, ".yaml,.yml"), cluster),
      card("Trace", h("p", { class: "quiet" }, "One JSON object per line: when, what, how many, how long."), upload(trace, ".jsonl,.json,.txt"), trace)),
    card("Second policy",
      h("div", { class: "fields" },
        h("label", {}, "Settings that it changes", changes),
        h("label", {}, "Seconds until a node is ready", boot),
        h("label", {}, "Interruptions an hour of a spot instance", interruptions), button)));
  const element = h("div", {}, h("div", { class: "heading" }, h("h1", {}, "Simulation")),
    h("p", { class: "quiet" }, "What a trace of work would cost and how long it would wait, by the planner that the controller uses. Nothing is launched."), form, out);

  async function run() {
    button.disabled = true;
    show(out, h("p", { class: "quiet" }, "Simulating …"));
    try {
      const results = await post("/api/simulations", { cluster: cluster.value, trace: trace.value, changes: changes.value, boot: Number(boot.value), interruptions: Number(interruptions.value) });
      draw(results);
    } catch (error) {
      show(out, problem(error instanceof ApiError ? error.error : { what: String(error) }));
    }
    button.disabled = false;
  }

  function draw(results) {
    const rows = [
      ["Cost", (r) => dollars(r.cost), "cost"], ["Median wait", (r) => duration(r.wait_p50), "wait_p50"], ["90% wait at most", (r) => duration(r.wait_p90), "wait_p90"], ["Longest wait", (r) => duration(r.wait_max), "wait_max"],
      ["Node hours", (r) => number(r.node_hours), "node_hours"], ["Busy", (r) => `${Math.round(r.busy_share * 100)}%`, null], ["Most nodes", (r) => number(r.peak_nodes), "peak_nodes"], ["Launches", (r) => number(r.launches), "launches"], ["Tasks", (r) => number(r.tasks), null], ["Unfinished", (r) => number(r.unfinished), "unfinished"],
    ].map(([name, format, key]) => {
      const best = key && Math.min(...results.map((r) => r[key]));
      const differs = key && results.some((r) => r[key] !== best);
      return h("tr", {}, h("th", { scope: "row" }, name), results.map((r) => h("td", { class: `num${differs && r[key] === best ? " best" : ""}` }, format(r))));
    });
    const plot = (title, value, format) => {
      const chart = lineChart({ label: title, xFormat: (v) => duration(v), format });
      chart.set({ from: 0, to: Math.max(1, ...results.map((r) => r.seconds)), series: results.map((r, i) => ({ name: r.policy, colour: `c${i * 3 + 1}`, step: true, points: r.samples.map((x) => [x.at, value(x)]) })) });
      return card(title, chart.element);
    };
    show(out, card("Result", h("div", { class: "scroll" }, table(["", ...results.map((r) => `>${r.policy}`)], rows)),
      results.some((r) => !r.priced) && h("p", { class: "quiet" }, "Some prices are unknown and count as $0.")),
    h("div", { class: "columns" }, plot("Nodes", (x) => x.ready + x.launching, number), plot("Waiting tasks", (x) => x.waiting, number), plot("Price per hour", (x) => x.price_per_hour, dollars)));
    out.firstElementChild.scrollIntoView({ behavior: "smooth" });
  }

  return { element, title: "Simulation" };
}

function upload(target, accept) {
  const input = h("input", { type: "file", accept, "aria-label": "Read a file", onchange: async () => { if (input.files[0]) target.value = await input.files[0].text(); } });
  return input;
}
