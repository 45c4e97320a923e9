// The frame: which page is shown, and the stream of changes that feeds it.

import { ApiError, events, get } from "./api.js";
import { overview } from "./overview.js";
import { clusterPage } from "./cluster.js";
import { jobsPage, sweepsPage, trainingsPage } from "./work.js";
import { simulationPage } from "./simulation.js";
import { h, hideTooltip, problem, show } from "./dom.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
export const state = { clusters: new Map(), session: { read_only: true } };

const PAGES = [
  [/^#?\/?$/, () => overview(state)],
  [/^#\/clusters\/([^/]+)$/, (name) => clusterPage(state, name)],
  [/^#\/jobs(?:\/([^/]+))?$/, (name) => jobsPage(state, name)],
  [/^#\/sweeps(?:\/([^/]+))?$/, (id) => sweepsPage(state, id)],
  [/^#\/trainings(?:\/([^/]+)(?:\/([^/]+))?)?$/, (name, job) => trainingsPage(state, name, job)],
  [/^#\/simulation$/, () => simulationPage(state)],
];

let page = null;
let stop = new AbortController();

function route() {
  stop.abort();
  stop = new AbortController();
  page?.close?.();
  hideTooltip();
  const match = PAGES.map(([pattern, make]) => [pattern.exec(location.hash), make]).find(([m]) => m);
  const [found, make] = match ?? [[], () => ({ element: h("p", {}, "There is no such page."), title: "Not found" })];
  page = make(...found.slice(1).map((part) => part && decodeURIComponent(part)));
  document.title = page.title === "Shoal" ? "Shoal" : `${page.title} · Shoal`;
  for (const link of document.querySelectorAll("#nav a")) {
    const target = link.getAttribute("href");
    const isHere = target === "#/" ? /^#?\/?$|^#\/clusters/.test(location.hash) : location.hash.startsWith(target);
    if (isHere) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  show(main, page.element);
  scrollTo(0, 0);
  connect(page, stop.signal);
}

async function connect(shown, signal) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      state.session = await get("/api/session", signal);
      const query = shown.cluster ? `?cluster=${encodeURIComponent(shown.cluster)}` : "";
      await events(`/api/stream${query}`, (kind, data) => {
        wait = 500;
        setLive("live", state.session.read_only ? "Live, read-only" : "Live");
        if (kind === "clusters") {
          for (const cluster of data) state.clusters.set(cluster.cluster, cluster);
          shown.onClusters?.(state);
        } else if (kind === "cluster") shown.onCluster?.(data);
        else if (kind === "history") shown.onHistory?.(data);
      }, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status === 401) {
        setLive("lost", "No access");
        const fix = "open the URL that `shoal ui` printed, or start it again: shoal ui";
        show(main, problem({ what: "This page has no valid token", why: error.error.what, fix }));
        return;
      }
    }
    if (signal.aborted) return;
    setLive("lost", "Connection lost; trying again");
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(5000, wait * 2);
  }
}

function setLive(kind, text) {
  if (live.textContent === text) return;
  live.className = `live ${kind}`;
  live.textContent = text;
  document.body.classList.toggle("lost", kind === "lost");
}

addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) location.reload();
  else route();
});
route();
