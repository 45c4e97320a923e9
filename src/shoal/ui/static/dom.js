// Elements and texts. Everything that comes from a cluster becomes a text node, never HTML.

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  return fill(element, props, children);
}

export function s(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return fill(element, props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "key") element.dataset.key = value;
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// Replace the children of an element; what had the focus and has a key keeps it.
export function show(element, ...children) {
  const key = element.contains(document.activeElement) && document.activeElement.dataset.key;
  element.replaceChildren(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false));
  if (key) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${Math.floor((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

export function dollars(amount) {
  if (amount > 0 && amount < 0.01) return `$${amount.toPrecision(2)}`;
  return `$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return value.toLocaleString("en-US", { maximumFractionDigits: size < 1 ? 4 : 2 });
}

export function amount(resource, value) {
  return resource.includes("memory") ? `${number(value / 2 ** 30)} GiB` : number(value);
}

export function clock(seconds, withDate = false) {
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const isToday = date.toDateString() === new Date().toDateString();
  return withDate || !isToday ? `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}` : time;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? one : many}`;
}

export function phaseChip(phase, count) {
  const text = count === undefined ? phase : `${count} ${phase}`;
  return h("span", { class: "chip" }, h("i", { class: `dot phase-${phase}` }), text);
}

// A command that can be copied.
export function command(text) {
  const button = h("button", {
    class: "copy", type: "button", title: "Copy", "aria-label": `Copy: ${text}`,
    onclick: async (event) => {
      event.preventDefault();
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    },
  }, "copy");
  return h("span", { class: "command" }, h("code", {}, text), button);
}

// The lines of a fix: text, and the command after its last colon.
export function fixLines(fix) {
  return fix.split("\n").filter(Boolean).map((line) => {
    const at = line.search(/(?:^|: )(?=(?:shoal|aws|gcloud|pip|kill) )/);
    if (at < 0) return h("div", { class: "fix" }, "Fix: ", line);
    const start = line.startsWith(": ", at) ? at + 2 : at;
    return h("div", { class: "fix" }, `Fix: ${line.slice(0, start)}`, command(line.slice(start)));
  });
}

export function problem(entry) {
  return h("div", { class: "problem", role: "alert" },
    h("strong", {}, entry.node && !entry.what.includes(entry.node) ? `${entry.node}: ${entry.what}` : entry.what),
    entry.why && h("div", {}, entry.why),
    entry.output?.length ? h("pre", {}, entry.output.join("\n")) : null,
    entry.fix && fixLines(entry.fix));
}

export function card(title, ...content) {
  return h("section", { class: "card" }, title && h("h2", {}, title), ...content);
}

export function meter(used, total, label) {
  const share = total > 0 ? Math.min(1, used / total) : 0;
  const bar = h("i", {});
  bar.style.width = `${share * 100}%`;
  return h("span", { class: "meter", role: "img", "aria-label": label, title: label }, bar);
}

const tooltip = document.getElementById("tooltip");

export function showTooltip(x, y, ...content) {
  tooltip.replaceChildren(...content.flat());
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
  const top = y + 14 + box.height > innerHeight ? y - box.height - 14 : y + 14;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

export function hideTooltip() {
  tooltip.hidden = true;
}

export function modal(title, ...content) {
  const dialog = h("dialog", { "aria-label": title });
  const close = h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, "✕");
  dialog.append(h("header", {}, h("h2", {}, title), close), ...content.flat().filter(Boolean));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
