// The script of all pages, in one file, so that a page takes few requests. Each part finds out whether it is needed.
"use strict";

// Puts the time in the viewer's zone in front of every time in UTC.
const timeFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function showLocalTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!element.dataset.local && !Number.isNaN(at.getTime())) {
      element.dataset.local = "1";
      element.textContent = `${timeFormat.format(at)} (${element.dateTime})`;
    }
  }
}

showLocalTimes(document);

// Puts the definition of a word next to it and into the window, outside of the panel, which would cut it off. Escape
// hides it until the word is pointed at, or focused, anew.
{
  const GAP = 8;

  function place(term) {
    const definition = term.querySelector(".definition");
    definition.style.position = "fixed";
    const word = term.getBoundingClientRect();
    const { width, height } = definition.getBoundingClientRect();
    const left = Math.min(word.left, document.documentElement.clientWidth - width - GAP);
    const isBelow = word.bottom + height <= innerHeight || word.top < height;
    definition.style.left = `${Math.max(GAP, left)}px`;
    definition.style.top = `${isBelow ? word.bottom : word.top - height}px`;
  }

  function shown() {
    return document.querySelectorAll(".term:hover, .term:focus");
  }

  for (const begin of ["mouseover", "focusin"]) {
    document.addEventListener(begin, ({ target }) => {
      const term = target.closest(".term");
      if (term) place(term);
    });
  }
  for (const end of ["mouseout", "focusout"]) {
    document.addEventListener(end, ({ target, relatedTarget }) => {
      const term = target.closest(".term");
      if (term && !term.contains(relatedTarget)) term.classList.remove("dismissed");
    });
  }
  document.addEventListener("scroll", () => shown().forEach(place), { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") shown().forEach((term) => term.classList.add("dismissed"));
  });
}

// Reads the page again every data-refresh seconds, while it is visible and nobody uses a control in it, until an answer
// is a page that does not refresh itself. The answer is parsed by XMLHttpRequest, because scripts may not make HTML from
// text (Trusted Types).
{
  const content = document.getElementById("content");
  const wait = Number(content.dataset.refresh) * 1000;
  let timer = 0;

  function isUsed() {
    const focused = document.activeElement;
    return document.hidden || (focused !== content && content.contains(focused));
  }

  function show(answer) {
    const open = [...content.querySelectorAll("details")].map((details) => details.open);
    const newer = document.adoptNode(answer.getElementById("content"));
    if (!newer.dataset.refresh) clearInterval(timer);
    content.replaceChildren(...newer.childNodes);
    content.querySelectorAll("details").forEach((details, index) => { details.open = Boolean(open[index]); });
    showLocalTimes(content);
  }

  function tell(text) {
    let notice = document.getElementById("notice");
    if (!notice) {
      notice = document.createElement("p");
      notice.id = "notice";
      notice.className = "failed";
      notice.setAttribute("role", "status");
      content.before(notice);
    }
    notice.textContent = text;
    notice.hidden = !text;
  }

  function refresh() {
    if (isUsed()) return;
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.onload = () => {
      if (request.status === 200 && request.response) {
        tell("");
        show(request.response);
      } else if (request.status === 401) {
        tell("Your session has ended. Reload the page to log in again.");
      } else {
        tell("The console cannot show newer values now. It tries again.");
      }
    };
    request.onerror = () => tell("The console does not answer. These are the last values; it tries again.");
    request.send();
  }

  if (wait > 0) timer = setInterval(refresh, wait);
}

// Lets the arrow keys move between the links of a drawing, which are a single stop of the Tab key.
{
  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function middle(link) {
    const box = link.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  }

  // Returns the nearest link in a direction; being off to the side counts three times.
  function nearest(links, from, [right, down]) {
    const [x, y] = middle(from);
    let best = null;
    let least = Infinity;
    for (const link of links) {
      const [itsX, itsY] = middle(link);
      const ahead = (itsX - x) * right + (itsY - y) * down;
      const aside = Math.abs((itsX - x) * down) + Math.abs((itsY - y) * right);
      if (ahead > 0.5 && ahead + 3 * aside < least) {
        best = link;
        least = ahead + 3 * aside;
      }
    }
    return best;
  }

  for (const drawing of document.querySelectorAll("svg.map")) {
    const links = [...drawing.querySelectorAll("a")];
    let current = drawing.querySelector("a.chosen") || links[0];
    for (const link of links) {
      link.setAttribute("tabindex", link === current ? "0" : "-1");
    }
    drawing.addEventListener("focusin", (event) => {
      current.setAttribute("tabindex", "-1");
      current = event.target.closest("a");
      current.setAttribute("tabindex", "0");
    });
    drawing.addEventListener("keydown", (event) => {
      const next = STEPS[event.key] && nearest(links, current, STEPS[event.key]);
      if (next) {
        event.preventDefault();
        next.focus();
      }
    });
  }
}

// Computes what a target of space amplification costs, as core/gc/target_costs.py does, while the slider moves.
const slider = document.getElementById("slider");

if (slider) {
  function cost(prices, target) {
    const excess = prices.stored_bytes - target * prices.live_bytes;
    let [copied, freed, price] = [0, 0, null];
    for (const [days, live, dead] of prices.classes) {
      if (excess <= freed) {
        break;
      }
      const share = Math.min(1, (excess - freed) / dead);
      copied += share * live;
      freed += share * dead;
      price = days;
    }
    return { copied, freed, price, after: (prices.stored_bytes - freed) / prices.live_bytes };
  }

  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (bytes >= 1024 && unit < units.length - 1) {
      bytes /= 1024;
      unit++;
    }
    return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
  }

  async function start() {
    const answer = await fetch(slider.dataset.source, { credentials: "same-origin" });
    if (answer.status === 503) {
      setTimeout(start, 2000);
      return;
    }
    if (!answer.ok || !answer.headers.get("content-type").startsWith("application/json")) {
      return;
    }
    const prices = await answer.json();
    const [input, output, text] = ["input", "output", ".now"].map((name) => slider.querySelector(name));
    const mark = document.getElementById("slider-mark");
    const [least, now] = [Number(slider.dataset.least), Number(slider.dataset.now)];
    const show = () => {
      const target = Number(input.value);
      const found = cost(prices, target);
      const x = now > least ? (640 * (target - least)) / (now - least) : 0;
      mark.setAttribute("x1", x);
      mark.setAttribute("x2", x);
      output.value = target.toFixed(3);
      text.textContent = found.price === null
        ? "The store is within this target: GC would copy nothing."
        : `GC would copy ${size(found.copied)} and free ${size(found.freed)};`
          + ` it would collect blocks down to a price of ${found.price.toPrecision(3)} days.`;
    };
    input.addEventListener("input", show);
    slider.hidden = false;
    show();
  }

  start();
}

// Draws a tile for each block on one canvas, from an answer of 8 bytes a block (console/snapshot.py).
const canvas = document.getElementById("tiles");

if (canvas) {
  const KINDS = ["fresh", "survivor", "large"];
  const STATES = ["open", "fenced", "sealed", "condemned"];
  const LEVELS = 8;
  const LARGE_TILES_MAX = 4000;
  const LITTLE_ENDIAN = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

  const now = document.getElementById("tiles-now");
  const form = document.querySelector("form.choice");
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  let data = null;
  let order = null;
  let cursor = -1;
  let columns = 1;
  let image = null;
  let size = 8;

  function read(buffer) {
    const head = new DataView(buffer);
    const count = head.getUint32(4, true);
    const numbers = new Uint32Array(count);
    for (let i = 0; i < count; i++) {
      numbers[i] = head.getUint32(12 + 4 * i, true);
    }
    const column = (place) => new Uint8Array(buffer, 12 + (4 + place) * count, count);
    return {
      picture: head.getUint32(0, true), found: head.getUint32(8, true), count, numbers,
      holes: column(0), kinds: column(1), ages: column(2), prices: column(3),
    };
  }

  // Returns the places of the tiles in the order to draw them in.
  function sorted(by) {
    const places = new Uint32Array(data.count);
    if (by !== "price") {
      return places.map((_, i) => i).sort((a, b) => data.numbers[a] - data.numbers[b]);
    }
    const starts = new Uint32Array(257);
    for (const price of data.prices) {
      starts[256 - price]++;
    }
    for (let i = 1; i <= 256; i++) {
      starts[i] += starts[i - 1];
    }
    for (let i = 0; i < data.count; i++) {
      places[starts[255 - data.prices[i]]++] = i;
    }
    return places;
  }

  // Returns a colour of the style sheet as the 32 bits of a pixel.
  function pixel(name) {
    pen.fillStyle = getComputedStyle(canvas).getPropertyValue(name).trim();
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
    return LITTLE_ENDIAN ? ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0
      : ((red << 24) | (green << 16) | (blue << 8) | 255) >>> 0;
  }

  function palette(by) {
    if (by === "kind") {
      const kinds = KINDS.map((kind) => pixel(`--kind-${kind}`));
      return Uint32Array.from({ length: 256 }, (_, value) => kinds[value % 4] || 0);
    }
    const steps = Array.from({ length: LEVELS }, (_, level) => pixel(`--q${level + 1}`));
    return Uint32Array.from({ length: 256 }, (_, value) => steps[value >> 5]);
  }

  function draw() {
    const by = form.elements.colour.value;
    const colours = palette(by);
    const values = { holes: data.holes, kind: data.kinds, age: data.ages }[by];
    columns = Math.max(1, Math.floor((canvas.parentElement.clientWidth - 40) / size));
    const rows = Math.max(1, Math.ceil(data.count / columns));
    canvas.width = columns * size;
    canvas.height = rows * size;
    image = pen.createImageData(canvas.width, canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    const gap = size > 3 ? 1 : 0;
    for (let place = 0; place < data.count; place++) {
      const colour = colours[values[order[place]]];
      let start = Math.floor(place / columns) * size * canvas.width + (place % columns) * size;
      for (let row = gap; row < size; row++, start += canvas.width) {
        pixels.fill(colour, start, start + size - gap);
      }
    }
    pen.putImageData(image, 0, 0);
    canvas.dataset.drawn = `${by} ${form.elements.order.value}`;
    for (const legend of document.querySelectorAll("[data-legend]")) {
      legend.hidden = legend.dataset.legend !== by;
    }
    mark(cursor);
  }

  // Frames a tile instead of the one before, and says what it is.
  function mark(place) {
    const line = Math.max(1, size >> 2);
    if (cursor >= 0) {
      const [x, y] = [(cursor % columns) * size, Math.floor(cursor / columns) * size];
      pen.putImageData(image, 0, 0, x - 2 * line, y - 2 * line, size + 4 * line, size + 4 * line);
    }
    cursor = Math.min(place, data.count - 1);
    if (cursor < 0) {
      return;
    }
    pen.strokeStyle = getComputedStyle(canvas).getPropertyValue("--mark").trim();
    pen.lineWidth = line;
    const [x, y] = [(cursor % columns) * size, Math.floor(cursor / columns) * size];
    pen.strokeRect(x - line / 2, y - line / 2, size - 1 + line, size - 1 + line);
    now.textContent = describe(order[cursor]);
  }

  function duration(minutes) {
    for (const [unit, name] of [[525600, "years"], [1440, "days"], [60, "h"]]) {
      if (minutes >= 2 * unit) {
        return `${(minutes / unit).toFixed(1)} ${name}`;
      }
    }
    return `${Math.round(minutes)} min`;
  }

  function describe(tile) {
    const price = data.prices[tile];
    const words = [
      `Block ${(data.numbers[tile] + 1).toLocaleString()} in the store`,
      `${KINDS[data.kinds[tile] % 4]}, ${STATES[data.kinds[tile] >> 2]}`,
      `${(data.holes[tile] / 2.56).toFixed(1)} % holes`,
      `about ${duration(10 ** ((data.ages[tile] * 7) / 256))} old`,
    ];
    if (price === 255) {
      words.push("empty, so GC deletes it without copying");
    } else if (price > 0) {
      words.push(`worth collecting from a price of ${(10 ** (((price - 1) * 7) / 254 - 3)).toPrecision(2)} days`);
    }
    return `${words.join("; ")}.`;
  }

  function open(place) {
    if (data && place >= 0 && place < data.count) {
      location.assign(`at?picture=${data.picture}&block=${data.numbers[order[place]]}`);
    }
  }

  function placeOf(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) * canvas.width) / box.width / size);
    const row = Math.floor(((event.clientY - box.top) * canvas.height) / box.height / size);
    return row * columns + column;
  }

  function move(to) {
    mark(Math.max(0, Math.min(data.count - 1, to)));
    const y = canvas.getBoundingClientRect().top + Math.floor(cursor / columns) * size;
    if (y < 0 || y + size > innerHeight) {
      scrollBy(0, y - innerHeight / 2);
    }
  }

  canvas.addEventListener("click", (event) => open(placeOf(event)));
  canvas.addEventListener("mousemove", (event) => {
    const place = placeOf(event);
    if (data && place >= 0 && place < data.count) {
      now.textContent = describe(order[place]);
    }
  });
  canvas.addEventListener("keydown", (event) => {
    if (!data || !data.count) {
      return;
    }
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns,
      PageUp: -10 * columns, PageDown: 10 * columns, Home: -Infinity, End: Infinity,
    };
    if (event.key === "Enter") {
      open(cursor);
    } else if (event.key in steps) {
      event.preventDefault();
      move(cursor < 0 ? 0 : cursor + steps[event.key]);
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change();
  });
  form.addEventListener("change", change);
  addEventListener("resize", () => data && draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw());

  // Draws anew as the form says. Another order of more tiles than are shown has to be asked for.
  function change() {
    const query = new URLSearchParams(new FormData(form)).toString();
    history.replaceState(null, "", `?${query}`);
    if (!data) {
      return;
    }
    if (data.found > data.count) {
      load(`tiles.bin?${query}`);
      return;
    }
    order = sorted(form.elements.order.value);
    draw();
  }

  async function load(source) {
    const by = form.elements.order.value;
    const answer = await fetch(source, { credentials: "same-origin" });
    if (answer.status === 503) {
      now.textContent = "The store is being read.";
      setTimeout(load, 2000, source);
      return;
    }
    if (!answer.ok || answer.headers.get("content-type") !== "application/octet-stream") {
      now.textContent = "The tiles could not be read. Reload the page in a few seconds.";
      now.classList.add("failed");
      return;
    }
    now.classList.remove("failed");
    data = read(await answer.arrayBuffer());
    if (data.found > data.count && form.elements.order.value !== by) {
      change();
      return;
    }
    order = sorted(form.elements.order.value);
    size = data.count > LARGE_TILES_MAX ? 3 : 8;
    cursor = -1;
    draw();
    const shown = data.count.toLocaleString();
    now.textContent = data.found > data.count
      ? `${shown} of ${data.found.toLocaleString()} blocks; the table of Blocks has smaller cells.`
      : `${shown} ${data.count === 1 ? "block" : "blocks"}.`;
  }

  load(canvas.dataset.source);
}
