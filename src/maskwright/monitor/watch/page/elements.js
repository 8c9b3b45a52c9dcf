// Elements of the page. Text of runs becomes text nodes, never markup.

export const find = (id) => document.getElementById(id);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// say, set and show look first: a browser lays the page out again even for a value that is there already.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// Brings the children into this order. Only those out of place move, and the focus stays where it was.
export function arrange(parent, children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let present = parent.firstChild;
  for (const child of children) {
    if (child === present) present = present.nextSibling;
    else parent.insertBefore(child, present);
  }
  while (present) {
    const next = present.nextSibling;
    present.remove();
    present = next;
  }
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

// The items of each key; keys keep the order in which they first come. (Some browsers in use lack Map.groupBy.)
export function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (groups.has(key)) groups.get(key).push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

// Runs `work` only where `value` differs from that of the last call.
export function onChange(work) {
  let last;
  return (value, ...more) => {
    const key = JSON.stringify(value);
    if (key === last) return;
    last = key;
    work(value, ...more);
  };
}

// Its first `wordColumns` columns hold words, the others numbers.
export function table(caption, header, rows, wordColumns = 1) {
  const kind = (column) => ({ class: column < wordColumns ? "word" : "number" });
  const head = header.map((name, column) => make("th", { scope: "col", ...kind(column) }, name));
  const body = rows.map((row) =>
    make("tr", {}, ...row.map((cell, column) =>
      column ? make("td", kind(column), cell) : make("th", { scope: "row", class: "word" }, cell))),
  );
  const element = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, element);
}

// Makes `path` a small curve of these numbers, with a gap where one is missing.
export function spark(path, values) {
  const numbers = (values ?? []).filter((value) => typeof value === "number");
  if (numbers.length < 2) return set(path, "d", "");
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  let pen = "M";
  let commands = "";
  values.forEach((value, index) => {
    if (typeof value !== "number") {
      pen = "M";
      return;
    }
    const x = (100 * index) / (values.length - 1);
    const y = high > low ? 2 + (20 * (high - value)) / (high - low) : 12;
    commands += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return set(path, "d", commands);
}
