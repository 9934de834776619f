"use strict";
// What pages do beyond links and forms: follow the store while the tab is visible, and keys. Everything works without it.
(() => {
  const live = document.getElementById("live");
  const said = document.getElementById("live-state");

  // Live ---------------------------------------------------------------------------------------------------------------
  // A stream says something every 5 seconds; one that has not for so long is not live.
  const QUIET = 15000;
  // A browser has six connections to a server. Four may be streams, so that pages can load: where more are in sight, they take turns.
  const STREAMS = [1, 2, 3, 4].map((n) => `holdfast-stream-${n}`);
  const TURN = 5000, IN_TURNS = "live in turns: many pages are in sight";
  let stream = null, turn = null, name = null, began = 0, heard = 0, skew = 0;

  async function open() {
    if (!live || !live.dataset.live || turn || document.hidden) return;
    const mine = turn = new AbortController(), locks = navigator.locks;
    // Browsers have locks with HTTPS, and for servers on this machine.
    if (!locks) return listen();
    const held = (await locks.query()).held.map((one) => one.name);
    if (mine.signal.aborted) return;
    const free = STREAMS.find((one) => !held.includes(one));
    if (!free) say(IN_TURNS);
    name = free || STREAMS[Math.floor(Math.random() * STREAMS.length)];
    const wait = () => new Promise((done) => { mine.signal.onabort = done; listen(); });
    locks.request(name, { signal: mine.signal }, wait).catch(() => {});
  }

  function listen() {
    heard = began = Date.now();
    const address = new URL(live.dataset.live, location.href);
    address.searchParams.set("mark", live.dataset.mark);
    stream = new EventSource(address);
    stream.addEventListener("open", () => say("live"));
    stream.addEventListener("error", () => {
      say("not connected");
      // A refusal ends a stream for good; another one is judged anew.
      if (stream && stream.readyState === EventSource.CLOSED) { close(); setTimeout(open, 10000); }
    });
    stream.addEventListener("gave-up", (event) => { heard = Date.now(); say(JSON.parse(event.data).text); });
    for (const name of ["changed", "ping"]) stream.addEventListener(name, (event) => hear(JSON.parse(event.data)));
  }

  // Something new, or that what is shown is still so.
  function hear({ mark, html, at, now }) {
    heard = Date.now();
    if (!at) return;
    clock(now);
    if (html) { live.dataset.mark = mark; swap(html, at); }
    else if (!waiting) asOf(at);
    say("live");
  }

  function asOf(at) {
    const age = document.querySelector(".age time");
    if (age) age.dateTime = at;
    ages();
  }

  // By the server's clock.
  function clock(now) { skew = Date.parse(now) - Date.now(); }

  async function watch() {
    if (!stream) return;
    if (Date.now() - heard >= QUIET) {
      say("not live: the server is silent");
      // Perhaps only this connection is dead.
      close(); open();
    } else if (name && Date.now() - began > TURN) {
      const { pending } = await navigator.locks.query();
      if (!stream || !pending.some((one) => one.name === name)) return;
      say(IN_TURNS);
      close(); open();
    }
  }

  function close() {
    if (stream) stream.close();
    if (turn) turn.abort();
    stream = turn = name = null;
  }

  function say(text) { if (said && said.textContent !== text) said.textContent = text; }

  // Put new content in place, and keep what the person was doing there.
  let waiting = null;
  function swap(html, at) {
    const chosen = document.getSelection();
    if (chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode)) { waiting = [html, at]; return; }
    waiting = null;
    const active = live.contains(document.activeElement) ? document.activeElement : null;
    const place = active && placeOf(active);
    const ticked = new Set([...live.querySelectorAll("input:checked")].map((one) => one.value));
    const typed = new Map([...live.querySelectorAll("input[name]:not([type=hidden]):not([type=checkbox])")].map((one) => [one.name, one.value]));
    const shut = new Map([...live.querySelectorAll("details[id]")].map((one) => [one.id, one.open]));
    const boxes = [...live.querySelectorAll(".box")].map((one) => [one.scrollLeft, one.scrollTop]);
    const scrolled = [scrollX, scrollY];
    const current = here(), nth = rows().indexOf(current);
    live.innerHTML = html;
    for (const one of live.querySelectorAll("input[type=checkbox]")) one.checked = ticked.has(one.value);
    for (const one of live.querySelectorAll("input[name]")) if (typed.has(one.name)) one.value = typed.get(one.name);
    for (const one of live.querySelectorAll("details[id]")) if (shut.has(one.id)) one.open = shut.get(one.id);
    live.querySelectorAll(".box").forEach((one, n) => { if (boxes[n]) [one.scrollLeft, one.scrollTop] = boxes[n]; });
    if (current) (current.id ? document.getElementById(current.id) : rows()[nth])?.classList.add("here");
    if (place) find(place)?.focus({ preventScroll: true });
    scrollTo(...scrolled);
    asOf(at); count(); draw();
  }

  // The same element in the new content: by id, or by its row and its place there.
  function placeOf(one) {
    const row = one.closest("[id]");
    const all = row ? [...row.querySelectorAll("a,button,input,select,summary,[tabindex]")] : [];
    return { id: one.id, row: row && row.id, n: all.indexOf(one) };
  }
  function find(place) {
    if (place.id) return document.getElementById(place.id);
    const row = place.row && document.getElementById(place.row);
    return row && row.querySelectorAll("a,button,input,select,summary,[tabindex]")[place.n];
  }

  document.addEventListener("selectionchange", () => { if (waiting && document.getSelection().isCollapsed) swap(...waiting); });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);

  // How long ago ---------------------------------------------------------------------------------------------------------
  const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  function ages() {
    for (const one of document.querySelectorAll("time[datetime]")) {
      const seconds = Math.round((Date.now() + skew - Date.parse(one.dateTime)) / 1000);
      const [size, unit] = UNITS.find(([size]) => Math.abs(seconds) >= size) || [1, "s"];
      const text = `${Math.floor(Math.abs(seconds) / size)} ${unit}`;
      one.title = `${one.dateTime.slice(0, 10)} ${one.dateTime.slice(11, 19)} UTC`;
      if (one.className === "until") one.textContent = seconds < 0 ? `for another ${text}` : "until now";
      else one.textContent = !seconds ? "now" : seconds < 0 ? `in ${text}` : `${text} ago`;
    }
  }
  setInterval(() => { if (!document.hidden) { ages(); watch(); } }, 1000);

  // The matrix -----------------------------------------------------------------------------------------------------------
  // Drawn from the table beside it: a column for each stretch, a band for each stage, shares of states from top to bottom.
  function draw() {
    const canvas = document.querySelector("canvas.matrix");
    if (!canvas) return;
    const lines = [...document.getElementById(canvas.dataset.table).tBodies[0].rows];
    const keys = [...document.querySelectorAll(".legend .key")], back = getComputedStyle(canvas).backgroundColor;
    const fills = Object.fromEntries(keys.map((one) => [one.classList[1], hatched(one, back)]));
    const bands = lines[0].cells.length - 2, scale = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const pen = canvas.getContext("2d"), wide = canvas.width / lines.length, high = canvas.height / bands;
    lines.forEach((line, x) => [...line.cells].slice(2).forEach((cell, band) => {
      let top = band * high;
      for (const [state, n] of cell.dataset.counts.trim().split(" ").map((one) => one.split(":"))) {
        if (!n) continue;
        const part = (high - 4 * scale) * n / line.dataset.items;
        pen.fillStyle = fills[state];
        pen.fillRect(x * wide, top, Math.max(1, wide - (wide > 4 ? 1 : 0)), Math.max(n > 0 ? 1 : 0, part));
        top += part;
      }
    }));
    canvas.onclick = (event) => lines[Math.floor(event.offsetX / canvas.clientWidth * lines.length)]?.querySelector("a").click();
  }
  addEventListener("resize", draw);

  // The colour of a state and its hatching, as the legend has them.
  function hatched(key, back) {
    const tile = document.createElement("canvas"), pen = tile.getContext("2d"), scale = devicePixelRatio || 1;
    tile.width = tile.height = 6 * scale;
    pen.scale(scale, scale);
    pen.fillStyle = getComputedStyle(key).color;
    pen.fillRect(0, 0, 6, 6);
    pen.strokeStyle = back;
    pen.stroke(new Path2D(key.querySelector("path").getAttribute("d")));
    return pen.createPattern(tile, "repeat");
  }

  // Rows and keys --------------------------------------------------------------------------------------------------------
  const rows = () => [...document.querySelectorAll("main tbody tr")].filter((one) => one.checkVisibility());
  const here = () => document.querySelector("tr.here");

  function move(by) {
    const all = rows();
    if (!all.length) return;
    const now = all.indexOf(here());
    const next = all[Math.min(all.length - 1, Math.max(0, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
    here()?.classList.remove("here");
    next.classList.add("here");
    next.tabIndex = -1;
    (next.querySelector("a,input") || next).focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  function count() {
    const chosen = document.getElementById("chosen");
    if (!chosen) return;
    chosen.dataset.all ??= chosen.textContent;
    const n = document.querySelectorAll("input[name=select]:checked").length;
    chosen.textContent = n ? `${n} selected:` : chosen.dataset.all;
  }
  document.addEventListener("change", count);

  const KEYS = {
    "/": () => document.querySelector(".filters input, .filters select")?.focus(),
    j: () => move(1),
    k: () => move(-1),
    x: () => here()?.querySelector("input[type=checkbox]")?.click(),
    r: () => (here()?.querySelector("[data-verb=retry]") || document.querySelector("[data-verb=retry]:not(td *)"))?.click(),
    "?": () => document.getElementById("help").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("select,textarea,input:not([type=checkbox])")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const row = event.key === "Enter" && !event.target.matches("a,button,summary") && here()?.querySelector("th a");
    if (row) { event.preventDefault(); row.click(); }
    if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); }
  });

  clock(document.documentElement.dataset.now);
  ages();
  draw();
  open();
})();
