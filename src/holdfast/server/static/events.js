// A list of all events of a session of which only the visible rows exist: rows have a fixed height,
// and windows of the log are fetched as they come into view. The table it replaces works by pages.
const ROW = 28;
const WINDOW = 200;
const KEPT = 12;

function line(event, before) {
  const row = document.createElement("a");
  row.className = "vrow pickable";
  row.href = `?sel=event:${event.seq}#e${event.seq}`;
  row.id = `e${event.seq}`;
  const since = before ? Math.max(0, Date.parse(event.at) - Date.parse(before.at)) : null;
  const parts = Object.entries(event.data)
    .filter(([, value]) => ["string", "number", "boolean"].includes(typeof value) && value !== "" && value !== false)
    .map(([name, value]) => `${name} ${String(value).slice(0, 60)}`);
  const cells = [event.seq, event.at.slice(11, 23), since === null ? "" : `${since} ms`, event.type, parts.join(" · ").slice(0, 300)];
  for (const [place, text] of cells.entries()) {
    const cell = document.createElement("span");
    cell.className = ["num seq", "dim", "num faint", "ty", "sum cutoff"][place];
    cell.textContent = spelled(String(text));
    row.append(cell);
  }
  return row;
}

// The same characters as on pages that the server renders: nothing is hidden or turned around.
function spelled(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (letter) => `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export function eventList(list) {
  const session = list.dataset.session;
  const space = list.querySelector(".vspace");
  const tip = Number(list.dataset.tip);
  const pages = new Map();
  const selected = list.dataset.selected.startsWith("event:") ? Number(list.dataset.selected.slice(6)) : 0;

  async function load(number) {
    if (pages.has(number)) return;
    pages.set(number, []);
    const answer = await fetch(`/api/v1/sessions/${session}/events?after=${number * WINDOW}&limit=${WINDOW}`);
    if (!answer.ok) { pages.delete(number); return; }
    pages.set(number, (await answer.json()).events);
    while (pages.size > KEPT) pages.delete(pages.keys().next().value);
    draw();
  }

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
    const last = Math.min(tip, first + Math.ceil(list.clientHeight / ROW) + 12);
    const focused = document.activeElement?.classList.contains("vrow") ? document.activeElement.id : "";
    const rows = [];
    for (let at = first; at < last; at++) {
      const page = pages.get(Math.floor(at / WINDOW));
      if (!page) { load(Math.floor(at / WINDOW)); continue; }
      const event = page[at % WINDOW];
      if (!event) continue;
      const row = line(event, page[(at % WINDOW) - 1]);
      row.style.top = `${at * ROW}px`;
      if (event.seq === selected) row.setAttribute("aria-current", "true");
      rows.push(row);
    }
    space.replaceChildren(...rows);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  document.getElementById("event-table").remove();
  document.getElementById("pager").remove();
  list.hidden = false;
  space.style.height = `${tip * ROW}px`;
  list.scrollTop = Math.max(0, (selected || Number(list.dataset.first)) - 3) * ROW;
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  draw();
}
