// Makes a form of each operation in /openapi.json. Everything that the API says becomes text of the page, never HTML.
"use strict";

const SHOWN_MAX = 200000; // characters of an answer
const WAIT_MS = 60000;
const token = document.getElementById("token");
let description;

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Control characters and marks of writing direction would change how a text looks.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// Breaks JSON into lines without reading its numbers, which may be larger than those of JavaScript.
function inLines(json) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return json.replace(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|\s+/g, (part) => {
    if (part === "{" || part === "[") { depth += 1; return part + line(); }
    if (part === "}" || part === "]") { depth = Math.max(0, depth - 1); return line() + part; }
    if (part === ",") return part + line();
    if (part === ":") return ": ";
    return part.trim();
  });
}

function resolved(schema) {
  const found = (schema.anyOf || []).find((one) => one.type !== "null") || schema;
  return found.$ref ? description.components.schemas[found.$ref.split("/").pop()] : found;
}

function limits(schema) {
  const names = { default: "default", minimum: "at least", maximum: "at most", minLength: "characters: at least", maxLength: "characters: at most", pattern: "pattern" };
  return Object.entries(names).filter(([name]) => schema[name] !== undefined && schema[name] !== null)
    .map(([name, text]) => `${text} ${schema[name]}`);
}

function fieldOf(parameter, id) {
  const schema = { ...parameter.schema, ...resolved(parameter.schema) };
  const examples = parameter.schema.examples || [];
  const attributes = { name: parameter.name, id, "aria-describedby": `${id}-hint` };
  if (parameter.required) attributes.required = "";
  const field = schema.enum
    ? make("select", attributes, ...["", ...schema.enum].map((one) => make("option", { value: one }, one || "any")))
    : make("input", { ...attributes, autocomplete: "off", value: parameter.required && examples.length ? examples[0] : "" });
  const hint = [parameter.description, ...limits(schema)].filter(Boolean).join("; ");
  return make("div", {}, make("label", { for: id }, parameter.name + (parameter.required ? " (required)" : ""), field),
    make("small", { id: `${id}-hint` }, hint));
}

// The path stays below the place of this page, which a proxy may serve under another one.
function addressOf(path, form) {
  const query = new URLSearchParams();
  for (const field of form.querySelectorAll("input, select")) {
    if (path.includes(`{${field.name}}`)) path = path.replace(`{${field.name}}`, () => encodeURIComponent(field.value));
    else if (field.value) query.set(field.name, field.value);
  }
  return new URL(`..${path}${query.size ? `?${query}` : ""}`, location.href);
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

async function ask(address, needsToken, status, answer) {
  status.textContent = "Waiting for the answer.";
  answer.hidden = true;
  try {
    const headers = needsToken && token.value ? { Authorization: `Bearer ${token.value}` } : {};
    const reply = await fetch(address, { headers, credentials: "omit", redirect: "error", signal: AbortSignal.timeout(WAIT_MS) });
    const text = await reply.text();
    const shown = /json/.test(reply.headers.get("content-type")) ? inLines(text) : text;
    const left = shown.length - SHOWN_MAX;
    status.textContent = `${reply.status} ${reply.statusText}${left > 0 ? `; ${left} more characters are not shown` : ""}`;
    answer.textContent = visible(shown.slice(0, SHOWN_MAX));
    answer.hidden = false;
  } catch (error) {
    status.textContent = `There is no answer: ${error.message}`;
  }
}

function exampleOf(response) {
  const [content] = Object.values(response.content || {});
  const schema = content && content.schema ? resolved(content.schema) : {};
  return schema.examples ? JSON.stringify(schema.examples[0], null, 2) : "";
}

function operationOf(path, operation, number) {
  const needsToken = (operation.security || []).length > 0;
  const curl = make("code", {});
  const status = make("p", { role: "status" });
  const answer = make("pre", { tabindex: "0", role: "region", "aria-label": `Answer of ${path}`, hidden: "" });
  const fields = (operation.parameters || []).map((one, at) => fieldOf(one, `field-${number}-${at}`));
  const button = make("button", {}, "Try it");
  const form = make("form", { "aria-label": path }, ...fields, button);
  const showCurl = () => {
    const header = needsToken ? "-H \"Authorization: Bearer $NOS_EC_API__TOKEN\" " : "";
    curl.textContent = `curl ${header}${quoted(addressOf(path, form).href)}`;
  };
  form.addEventListener("input", showCurl);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    await ask(addressOf(path, form), needsToken, status, answer);
    button.disabled = false;
  });
  showCurl();
  const answers = Object.entries(operation.responses).map(([code, one]) => make("li", {}, `${code}: ${one.description}`));
  const example = exampleOf(operation.responses["200"]);
  return make("section", {}, make("h3", {}, `GET ${path}`), make("p", {}, operation.description || ""), form,
    make("p", {}, curl), status, answer,
    make("details", {}, make("summary", {}, `Answers of ${path}`), make("ul", {}, ...answers),
      ...(example ? [make("pre", { tabindex: "0", role: "region", "aria-label": `Example of ${path}` }, visible(example))] : [])));
}

async function show() {
  const reply = await fetch(new URL("../openapi.json", location.href), { credentials: "omit", redirect: "error" });
  description = await reply.json();
  const operations = Object.entries(description.paths).map(([path, methods]) => [path, methods.get]);
  const tags = new Set(operations.map(([, operation]) => operation.tags[0]));
  document.getElementById("operations").append(...[...tags].flatMap((tag) => [make("h2", {}, tag),
    ...operations.flatMap(([path, operation], number) => operation.tags[0] === tag ? [operationOf(path, operation, number)] : [])]));
  const access = document.getElementById("access");
  access.addEventListener("submit", (event) => event.preventDefault());
  access.hidden = !operations.some(([, operation]) => operation.security);
  document.getElementById("description").textContent = `${description.info.description} Version ${description.info.version}.`;
}

show().catch((error) => {
  document.getElementById("description").textContent = `The description of the API cannot be read: ${error.message}`;
});
