// What every page does: show times in the viewer's zone, and refresh itself.
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

// Reads the page again every data-refresh seconds, while it is visible and nobody uses a control in it. The answer is
// parsed by XMLHttpRequest, because scripts may not make HTML from text (Trusted Types).
{
  const content = document.getElementById("content");
  const wait = Number(content.dataset.refresh) * 1000;

  function isUsed() {
    const focused = document.activeElement;
    return document.hidden || (focused !== content && content.contains(focused));
  }

  function show(answer) {
    const open = [...content.querySelectorAll("details")].map((details) => details.open);
    content.replaceChildren(...document.adoptNode(answer.getElementById("content")).childNodes);
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

  if (wait > 0) setInterval(refresh, wait);
}
