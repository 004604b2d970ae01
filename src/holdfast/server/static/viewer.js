// Live pages: a stream says that something moved, and the page's own region is fetched again, at
// most four times a second. Everything works without this file, by loading the page again.
const stream = document.body.dataset.stream;
const connection = document.getElementById("connection");
const delta = document.getElementById("delta");
let due = null;
let busy = false;

async function refresh() {
  due = null;
  const live = document.getElementById("live");
  if (!live || busy || live.contains(document.activeElement)) { later(1000); return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!fresh) return;
    const open = [...live.querySelectorAll("details[open]")].map((d) => d.closest("[id]")?.id);
    const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
    live.replaceChildren(...fresh.childNodes);
    for (const id of open) if (id) document.getElementById(id)?.querySelector("details")?.setAttribute("open", "");
    if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
  } finally {
    busy = false;
  }
}

function later(milliseconds) {
  if (due === null) due = setTimeout(refresh, milliseconds);
}

if (stream) {
  const source = new EventSource(stream);
  source.onopen = () => { connection.textContent = "live"; later(250); };
  source.onerror = () => { connection.textContent = "connection lost, trying again"; };
  source.addEventListener("event", () => { if (delta) { delta.textContent = ""; delta.hidden = true; } later(250); });
  source.addEventListener("hint", () => later(250));
  source.addEventListener("delta", (item) => {
    const { data } = JSON.parse(item.data);
    const text = typeof data === "string" ? data : data?.text ?? "";
    if (delta && text) { delta.hidden = false; delta.textContent += text; }
  });
  addEventListener("pagehide", () => source.close());
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  navigator.clipboard?.writeText(button.dataset.copy);
  document.getElementById("said").textContent = "Copied";
});

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  const places = { s: "/sessions", r: "/runs", i: "/inbox", c: "/chat" };
  if (before === "g" && places[event.key]) location.href = places[event.key];
  if (event.key === "/") { document.querySelector("input[type=search]")?.focus(); event.preventDefault(); }
  if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("a.id, a.pend, a.seq")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + (event.key === "j" ? 1 : -1)))]?.focus();
  }
  before = event.key;
});
