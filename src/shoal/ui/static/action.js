// Actions: the events of an operation as it proceeds, and its questions.

import { ApiError, events, path, post } from "./api.js";
import { dollars, duration, fixLines, h, modal, number, problem, show } from "./dom.js";

export function runAction(cluster, action, title, body = {}) {
  const log = h("div", { class: "log events", role: "log", "aria-live": "polite" });
  const question = h("div", {});
  const stop = new AbortController();
  const dialog = modal(`${title} · ${cluster}`, log, question);
  dialog.addEventListener("close", () => stop.abort());
  const rows = new Map();

  function ask(id, event) {
    const answer = async (yes) => {
      show(question);
      try { await post(path("actions", id, "answer"), { yes }); } catch (error) { fail(error); }
    };
    const no = h("button", { type: "button", onclick: () => answer(false) }, "No, change nothing");
    const yes = h("button", { type: "button", class: event.destructive ? "danger" : "primary", onclick: () => answer(true) }, "Yes");
    show(question, h("div", { class: "question", role: "alertdialog", "aria-label": event.text },
      event.text.split("\n").map((line) => h("p", {}, line)), h("div", { class: "buttons" }, no, yes)));
    (event.destructive ? no : yes).focus();
  }

  function fail(error) {
    show(question, problem(error instanceof ApiError ? error.error : { what: String(error.message ?? error) }), closing());
  }

  function closing() {
    return h("div", { class: "buttons" }, h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close"));
  }

  function onEvent(id, event) {
    if (event.event === "question") ask(id, event);
    else if (event.event === "answer") show(question);
    else if (event.event === "done") {
      if (!event.ok) show(question, problem(event.error), closing());
      else show(question, h("p", { class: "result" }, event.declined ? "Nothing was changed." : "Done."), closing());
    } else {
      const row = describe(event);
      if (!row) return;
      const key = event.event === "node" ? `node ${event.node}` : null;
      if (key && rows.has(key)) rows.get(key).replaceWith(row); else log.append(row);
      if (key) rows.set(key, row);
      log.scrollTop = log.scrollHeight;
    }
  }

  (async () => {
    try {
      const { id } = await post(path("clusters", cluster, "actions", action), body);
      await events(path("actions", id), (_, event) => onEvent(id, event), stop.signal);
    } catch (error) {
      if (!stop.signal.aborted) fail(error);
    }
  })();
  return dialog;
}

function describe(event) {
  switch (event.event) {
    case "plan": return line(`${event.action} ${event.subject}`, event.reason);
    case "stage": return line(event.text);
    case "warning": case "finding": return h("div", { class: "event warning" }, h("b", {}, event.what), event.why && h("div", {}, event.why), event.fix && fixLines(event.fix));
    case "price": return h("div", { class: "event" },
      h("b", {}, `${event.complete ? "" : "at least "}${dollars(event.per_hour)}/h`), ` (${event.source})`,
      event.items.map((item) => h("div", { class: "quiet" }, `${item.count} × ${item.node_type}${item.instance_type ? `, ${item.instance_type}` : ""}${item.market ? `, ${item.market}` : ""}: ${item.price === null ? "no price" : `${dollars(item.price)}/h each`}`)));
    case "node": return h("div", { class: "event" }, h("i", { class: `dot phase-${event.phase}` }), ` ${event.node} ${event.phase}`, event.detail && h("span", { class: "quiet" }, ` ${event.detail}`));
    case "launch": return line(`${event.launched} of ${event.requested} × ${event.node_type} launched`, event.error || `${event.instance_type} ${event.market} ${event.zone}`);
    case "unchanged": return line("nothing to change", event.why);
    case "applied": return line("settings applied", event.changes.join("; "));
    case "ready": return line(`${event.cluster} is ready`, `${event.nodes} nodes in ${duration(event.seconds)}`);
    case "gone": return line(`${event.cluster} is terminated`, `${event.nodes} nodes in ${duration(event.seconds)}`);
    case "stopped": return line(`${event.cluster} is stopped`, event.ongoing_costs.join("; "));
    case "scaled_down": return line(`${event.terminated} nodes terminated, ${event.remaining} kept`);
    case "deleted": return line("deleted", event.resources.join(", "));
    default: return null;
  }
}

function line(text, more = "") {
  return h("div", { class: "event" }, h("b", {}, text), more && h("span", { class: "quiet" }, ` ${more}`));
}

// The form for new limits; empty fields stay as they are.
export function limitsDialog(cluster, limits) {
  const types = Object.entries(limits.types ?? {}).filter(([, t]) => t.max_workers > 0);
  const max = h("input", { type: "number", min: 0, step: 1, name: "max_workers", placeholder: String(limits.max_workers ?? "") });
  const min = types.length === 1 ? h("input", { type: "number", min: 0, step: 1, name: "min_workers", placeholder: String(types[0][1].min_workers) }) : null;
  const stop = h("input", { type: "number", min: 0, step: 1, name: "autostop", placeholder: limits.autostop_s ? String(limits.autostop_s / 60) : "off" });
  const form = h("form", {
    method: "dialog",
    onsubmit: () => {
      const body = {};
      if (max.value !== "") body.max_workers = Number(max.value);
      if (min?.value) body.min_workers = Number(min.value);
      if (stop.value !== "") body.autostop = Number(stop.value) * 60;
      if (Object.keys(body).length) runAction(cluster, "limits", "Change limits", body);
    },
  },
  h("p", { class: "quiet" }, "As `shoal up` with these options does: you see the plan and the price first. Empty fields stay as they are."),
  h("label", {}, "Most workers", max),
  min && h("label", {}, `Fewest workers (${types[0][0]})`, min),
  h("label", {}, "Autostop after idle minutes (0: off)", stop),
  h("div", { class: "buttons" }, h("button", { class: "primary" }, "Show the plan")));
  modal(`Limits · ${cluster}`, form);
  max.focus();
}
