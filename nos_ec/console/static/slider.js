// Computes what a target of space amplification costs, as core/gc/target_costs.py does, while the slider moves.
"use strict";

const slider = document.getElementById("slider");

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

if (slider) {
  start();
}
