// Lets the arrow keys move between the links of a drawing, which are a single stop of the Tab key.
"use strict";

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
