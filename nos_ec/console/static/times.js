// Puts the time in the viewer's zone in front of every time in UTC.
"use strict";

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
