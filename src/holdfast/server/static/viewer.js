// What pages do beyond links and forms: they follow a stream, have keys for every action, and show a
// long log as a list of which only the visible part exists. Everything works without this file.
import { eventList } from "./events.js";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const connection = $("#connection");
const said = $("#said");

function say(text) { said.textContent = ""; said.textContent = text; }

// Live: a stream says that something moved, and the page's own region is fetched again, at most four
// times a second. What has the focus, is open or is scrolled stays as it is.
let due = null;
let busy = false;

function pathOf(element, root) {
  const path = [];
  for (let at = element; at && at !== root; at = at.parentElement) path.unshift([...at.parentElement.children].indexOf(at));
  return path;
}

function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) { from.replaceWith(to.cloneNode(true)); return; }
  if (from.nodeType === Node.TEXT_NODE) { if (from.data !== to.data) from.data = to.data; return; }
  if (from.nodeType !== Node.ELEMENT_NODE) return;
  if (from.id === "delta" || from.isEqualNode(to)) return;
  if (from.matches("input, textarea, select") && from === document.activeElement) return;
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
  for (const { name, value } of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  const old = [...from.childNodes];
  const fresh = [...to.childNodes];
  for (let n = 0; n < Math.max(old.length, fresh.length); n++) {
    if (!old[n]) from.append(fresh[n].cloneNode(true));
    else if (!fresh[n]) old[n].remove();
    else morph(old[n], fresh[n]);
  }
}

async function refresh() {
  due = null;
  const live = $("#live");
  if (!live || busy) { later(1000); return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh) return;
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
    const kept = live.contains(document.activeElement) ? pathOf(document.activeElement, live) : null;
    morph(live, fresh);
    if (kept && !live.contains(document.activeElement)) {
      let at = live;
      for (const place of kept) at = at?.children[place];
      at?.focus({ preventScroll: true });
    }
    const count = $(".nav .count", page);
    const mine = $(".nav .count");
    if (count && mine) mine.replaceWith(count);
    ages();
    if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
  } finally {
    busy = false;
  }
}

function later(milliseconds) { if (due === null) due = setTimeout(refresh, milliseconds); }

function lost(is) {
  const strip = $("#lost");
  if (!strip || strip.hidden === !is) return;
  if (is) $("#lost-at").textContent = new Date().toLocaleTimeString();
  strip.hidden = !is;
  for (const button of $$("button[type=submit]")) {
    if (is && !button.disabled) { button.disabled = true; button.dataset.off = ""; }
    if (!is && "off" in button.dataset) { button.disabled = false; delete button.dataset.off; }
  }
  say(is ? "The connection is lost" : "Connected again");
}

let last = 0;
function follow(address) {
  const url = new URL(address, location.href);
  if (last) url.searchParams.set("after", last);
  const source = new EventSource(url);
  source.onopen = () => { connection.textContent = "live"; delete connection.dataset.state; lost(false); later(250); };
  source.onerror = () => {
    connection.textContent = "connection lost, trying again";
    connection.dataset.state = "lost";
    lost(true);
    // A browser gives up where a proxy answers in between; then it is tried again here.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(address), 1000);
  };
  source.addEventListener("event", (item) => {
    last = Number(item.lastEventId) || last;
    const delta = $("#delta");
    if (delta) { delta.textContent = ""; delta.hidden = true; }
    later(250);
  });
  source.addEventListener("hint", () => later(250));
  source.addEventListener("delta", (item) => {
    const { data } = JSON.parse(item.data);
    const text = typeof data === "string" ? data : data?.text ?? "";
    const delta = $("#delta");
    if (delta && text) { delta.hidden = false; delta.textContent += text; }
  });
  addEventListener("pagehide", () => source.close(), { once: true });
}
if (document.body.dataset.stream) follow(document.body.dataset.stream);

// Times are absolute in the page; an age stands in the title and is refreshed.
function ages() {
  for (const time of $$("time[datetime]")) {
    const seconds = Math.round((Date.now() - Date.parse(time.dateTime)) / 1000);
    const [size, word] = Math.abs(seconds) < 90 ? [1, "s"] : Math.abs(seconds) < 5400 ? [60, "min"] : Math.abs(seconds) < 172800 ? [3600, "h"] : [86400, "days"];
    time.title = seconds >= 0 ? `${Math.round(seconds / size)} ${word} ago` : `in ${Math.round(-seconds / size)} ${word}`;
  }
}
ages();
setInterval(ages, 15000);

// The scrubber is a range input; moving it leads to the page as of that event.
function travel(at) {
  const scrub = $("[data-scrub]");
  if (!scrub) return;
  const tip = Number(scrub.dataset.tip);
  const url = new URL(location.href);
  url.hash = "";
  url.searchParams.delete("turn");
  if (at >= tip) url.searchParams.delete("at"); else url.searchParams.set("at", Math.max(1, at));
  location.href = url;
}
document.addEventListener("input", (event) => {
  if (!event.target.matches("[data-scrub] input")) return;
  const tip = $("[data-scrub]").dataset.tip;
  event.target.setAttribute("aria-valuetext", `event ${event.target.value} of ${tip}`);
  $("[data-scrub] .pos").firstChild.data = `#${event.target.value}`;
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-scrub] input")) travel(Number(event.target.value));
});

document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) { navigator.clipboard?.writeText(copy.dataset.copy); say("Copied"); }
  if (event.target.closest("[data-help]")) $("#keys").showModal();
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});

// Keys: none has an effect outside by itself; those that change something lead to a form or submit one.
const PLACES = { s: "/sessions", r: "/runs", i: "/inbox", c: "/chat" };
const ROWS = "a.id, a.pend, a.pickable";

function open(selector) { const link = $(selector); if (link) link.click(); return Boolean(link); }
function row(step) {
  const links = $$(ROWS).filter((link) => link.getClientRects().length);
  const current = links.indexOf(document.activeElement);
  const start = current >= 0 ? current + step : Math.max(0, links.findIndex((link) => link.getAttribute("aria-current")));
  links[Math.max(0, Math.min(links.length - 1, start))]?.focus();
}
function difference(step) {
  const all = $$(".difference, .cell[data-status=error], .entry[data-kind=error]");
  if (!all.length) return;
  const at = all.findIndex((item) => item.dataset.here === "");
  if (at >= 0) delete all[at].dataset.here;
  const next = all[(at + step + all.length) % all.length];
  next.dataset.here = "";
  next.tabIndex = -1;
  next.focus();
}
function turn(step) {
  const heads = $$(".turn-head");
  const top = heads.map((head) => head.getBoundingClientRect().top);
  const at = step > 0 ? top.findIndex((y) => y > 120) : top.findLastIndex((y) => y < 80);
  heads[at]?.scrollIntoView();
}
function position() { return Number($("[data-scrub] input")?.value); }

const KEYS = {
  "/": () => $("input[type=search]")?.focus(),
  "?": () => $("#keys")?.showModal(),
  j: () => row(1),
  k: () => row(-1),
  "[": () => open("[data-step=back]:not([data-scrub] *)") || travel(position() - 1),
  "]": () => open("[data-step=on]:not([data-scrub] *)") || travel(position() + 1),
  "{": () => turn(-1),
  "}": () => turn(1),
  ".": () => travel(Infinity),
  s: () => open("[data-selected] a.end") || open(".entry:last-of-type a.end"),
  f: () => open("[data-key=f]"),
  x: () => { const box = document.activeElement.closest("tr")?.querySelector("input[type=checkbox]"); if (box) box.checked = !box.checked; },
  c: () => open("[data-key=c]"),
  n: () => difference(1),
  p: () => difference(-1),
  y: () => { navigator.clipboard?.writeText(location.href); say("Link copied"); },
  Y: () => open(".cmd [data-copy]"),
  a: () => $("[data-answer=approve]")?.focus(),
  d: () => $("[name=reason]")?.focus(),
  e: () => { const box = $("details.editargs"); if (box) { box.open = true; box.querySelector("textarea").focus(); } },
  Escape: () => open("[data-escape]"),
};

let before = "";
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
    const form = event.target.closest("form[method=post]") ?? $("form.formgrid[method=post]");
    form?.requestSubmit(form.querySelector("button.primary[type=submit], button.primary"));
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if ($("dialog[open]")) return;
  const typing = event.target.closest("input:not([type=checkbox], [type=range], [type=radio]), textarea, select");
  if (typing) { if (event.key === "Escape") event.target.blur(); return; }
  if (event.target.matches("input[type=range]") && event.key.startsWith("Arrow")) return;
  if (before === "g" && PLACES[event.key]) { before = ""; location.href = PLACES[event.key]; return; }
  before = event.key;
  if (/^[1-9]$/.test(event.key) && open(`[data-tab="${event.key}"]`)) return;
  const action = KEYS[event.key];
  if (action) { event.preventDefault(); action(); }
});

const list = $("#vlist");
if (list) eventList(list);
