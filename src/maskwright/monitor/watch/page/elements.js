// Elements of the page. Text from runs becomes text nodes alone, never markup.

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

// Setting what is there already would make the browser lay the page out again.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// Brings the children into this order and moves only those that are out of place; the focus stays where it was.
export function arrange(parent, children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let here = parent.firstChild;
  for (const child of children) {
    if (child === here) here = here.nextSibling;
    else parent.insertBefore(child, here);
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

// The items by their key, in the order in which the keys come. (Map.groupBy is younger than some browsers in use.)
export function grouped(items, keyOf) {
  const found = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (found.has(key)) found.get(key).push(item);
    else found.set(key, [item]);
  }
  return found;
}

// Runs `work` only if `value` is another than the last time.
export function onChange(work) {
  let last;
  return (value, ...more) => {
    const key = JSON.stringify(value);
    if (key === last) return;
    last = key;
    work(value, ...more);
  };
}

export function table(caption, header, rows, words = 1) {
  const kind = (place) => ({ class: place < words ? "word" : "number" });
  const head = header.map((name, place) => make("th", { scope: "col", ...kind(place) }, name));
  const body = rows.map((row) =>
    make("tr", {}, ...row.map((cell, place) =>
      place ? make("td", kind(place), cell) : make("th", { scope: "row", class: "word" }, cell))),
  );
  const drawn = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, drawn);
}

// A small curve of a list of numbers; a gap where a number is missing.
export function spark(path, values) {
  const numbers = (values ?? []).filter((value) => typeof value === "number");
  if (numbers.length < 2) return set(path, "d", "");
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  let pen = "M";
  let drawn = "";
  values.forEach((value, place) => {
    if (typeof value !== "number") {
      pen = "M";
      return;
    }
    const x = (100 * place) / (values.length - 1);
    const y = high > low ? 2 + (20 * (high - value)) / (high - low) : 12;
    drawn += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return set(path, "d", drawn);
}
