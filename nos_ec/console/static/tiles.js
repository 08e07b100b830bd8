// Draws a tile for each block on one canvas, from an answer of 8 bytes a block (console/snapshot.py).
"use strict";

const KINDS = ["fresh", "survivor", "large"];
const STATES = ["open", "fenced", "sealed", "condemned"];
const LEVELS = 8;
const LARGE_TILES_MAX = 4000;
const LITTLE_ENDIAN = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

const canvas = document.getElementById("tiles");
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
    location.assign(`/blocks/at?picture=${data.picture}&block=${data.numbers[order[place]]}`);
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
  history.replaceState(null, "", `/blocks/tiles?${query}`);
  if (!data) {
    return;
  }
  if (data.found > data.count) {
    load(`/blocks/tiles.bin?${query}`);
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
