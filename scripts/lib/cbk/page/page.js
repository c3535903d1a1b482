// The tree of tensors, their statistics and the charts of a report. All texts of the checkpoint become text nodes, never HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const MOST_FOUND = 300, MOST_CHARTS = 60, MOST_CHILDREN = 40;

  // --- making elements
  function element(name, options = {}, ...children) {
    const out = document.createElement(name);
    for (const [key, value] of Object.entries(options)) {
      if (key === "class") out.className = value; else out.setAttribute(key, value);
    }
    out.append(...children);
    return out;
  }

  function drawn(name, attributes, text) {
    const out = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) out.setAttribute(key, value);
    if (text !== undefined) out.textContent = text;
    return out;
  }

  // --- numbers as text
  function short(number) {
    if (typeof number !== "number") return number === null || number === undefined ? "" : String(number);
    if (Number.isInteger(number) && Math.abs(number) < 1e6) return String(number);
    return String(Number(number.toPrecision(4)));
  }

  const grouped = (number) => typeof number === "number" ? number.toLocaleString("en-US") : String(number);

  function bytesText(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
    return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
  }

  // --- one tensor
  // A row of data: key, dtype, shape, bytes, tied_to, numbers, counts, edges, bins.
  const NUMBERS = ["min", "max", "mean", "std", "norm"], COUNTS = ["nan", "inf", "zeros", "subnormal"];
  const tensors = data.tensors.map((row) => ({
    key: row[0], dtype: row[1], shape: row[2], bytes: row[3], tied: row[4], numbers: row[5], counts: row[6], edges: row[7], bins: row[8],
    note: row[9],
  }));
  // Where a tensor is in the tree, and in the charts: states of an optimizer are below the names of their parameters.
  const names = new Map(data.names);
  function placeOf(key) {
    const state = data.states.find((one) => key.startsWith(one + "."));
    const number = state === undefined ? null : key.slice(state.length + 1).split(".")[0];
    const name = state === undefined ? undefined : names.get(`${state}.${number}`);
    return name === undefined ? key : `${state}.${name}.${key.slice(state.length + number.length + 2)}`;
  }
  const isNameless = (key) => data.states.some((one) => key.startsWith(one + ".")) && placeOf(key) === key;
  const notFinite = (tensor) => tensor.counts ? Number(tensor.counts[0]) + Number(tensor.counts[1]) : 0;
  const numberOf = (tensor, name) => tensor.numbers && typeof tensor.numbers[NUMBERS.indexOf(name)] === "number"
    ? tensor.numbers[NUMBERS.indexOf(name)] : null;

  function histogram(tensor) {
    const width = 320, height = 120, floor = height - 18;
    const out = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "histogram" });
    const most = Math.max(...tensor.bins), low = tensor.edges[0], high = tensor.edges[tensor.edges.length - 1];
    const place = (value) => high > low ? (value - low) / (high - low) * width : 0;
    tensor.bins.forEach((count, i) => {
      const left = place(tensor.edges[i]), right = high > low ? place(tensor.edges[i + 1]) : width;
      const up = count > 0 ? Math.max(1, count / most * (floor - 4)) : 0;
      const bar = drawn("rect", { class: "bar", x: left, y: floor - up, width: Math.max(0.5, right - left - 1), height: up });
      bar.append(drawn("title", {}, `${short(tensor.edges[i])} to ${short(tensor.edges[i + 1])}: ${grouped(count)}`));
      out.append(bar);
    });
    out.append(drawn("line", { class: "axis", x1: 0, x2: width, y1: floor, y2: floor }));
    out.append(drawn("text", { x: 0, y: height - 4 }, short(low)));
    if (high > low) out.append(drawn("text", { x: width, y: height - 4, "text-anchor": "end" }, short(high)));
    return out;
  }

  function details(tensor) {
    const list = element("dl");
    const add = (name, value) => list.append(element("dt", {}, name), element("dd", {}, value));
    add("key", tensor.key);
    add("dtype", tensor.dtype);
    add("shape", `[${tensor.shape.join(", ")}]`);
    add("bytes", grouped(tensor.bytes));
    if (tensor.tied !== null) add("tied to", tensor.tied);
    if (tensor.note) add("note", tensor.note);
    if (tensor.numbers) NUMBERS.forEach((name, i) => { if (tensor.numbers[i] !== null) add(name, short(tensor.numbers[i])); });
    if (tensor.counts) COUNTS.forEach((name, i) => { if (tensor.counts[i] !== 0) add(name, grouped(tensor.counts[i])); });
    const out = element("div", { class: "tensor" }, list);
    if (tensor.bins && tensor.bins.length > 0) out.append(histogram(tensor));
    return out;
  }

  // --- the tree
  const total = Math.max(1, tensors.reduce((sum, tensor) => sum + (tensor.tied === null ? tensor.bytes : 0), 0));

  function summary(name, what, bytes, bad) {
    const size = element("span", { class: "size" });
    const bar = element("i");
    bar.style.width = `${Math.min(100, bytes / total * 100)}%`;
    size.append(bar, element("span", {}, bytesText(bytes)));
    const row = element("span", { class: "row" }, element("span", { class: "key" }, name));
    if (bad > 0) row.append(element("span", { class: "badge" }, `${grouped(bad)} not finite`));
    row.append(element("span", { class: "what" }, what), size);
    return element("summary", {}, row);
  }

  // Its content is made when it is opened: a checkpoint may have 100,000 tensors.
  function lazily(head, fill) {
    const out = element("details", {}, head);
    let isFilled = false;
    out.addEventListener("toggle", () => {
      if (!out.open || isFilled) return;
      isFilled = true;
      fill(out);
    });
    return out;
  }

  function leaf(tensor, name) {
    const tied = tensor.tied === null ? "" : " = " + tensor.tied;
    const head = summary(name + tied, `${tensor.dtype} [${tensor.shape.join(", ")}]`, tensor.bytes, notFinite(tensor));
    return lazily(head, (out) => out.append(details(tensor)));
  }

  function newNode() { return { children: new Map(), tensors: [], bytes: 0, count: 0, bad: 0 }; }

  function tree() {
    const root = newNode();
    for (const tensor of tensors) {
      const parts = placeOf(tensor.key).split(".");
      const bytes = tensor.tied === null ? tensor.bytes : 0;
      let node = root;
      for (const part of parts.slice(0, -1)) {
        if (!node.children.has(part)) node.children.set(part, newNode());
        node = node.children.get(part);
        node.bytes += bytes;
        node.count += 1;
        node.bad += notFinite(tensor);
      }
      node.tensors.push([parts[parts.length - 1], tensor]);
    }
    return root;
  }

  function branch(name, node) {
    while (node.tensors.length === 0 && node.children.size === 1) { // "model" with "layers" alone is "model.layers"
      const [part, child] = node.children.entries().next().value;
      name += "." + part;
      node = child;
    }
    if (node.children.size === 0 && node.tensors.length === 1) return leaf(node.tensors[0][1], `${name}.${node.tensors[0][0]}`);
    const what = `${grouped(node.count)} tensor${node.count === 1 ? "" : "s"}`;
    return lazily(summary(name, what, node.bytes, node.bad), (out) => fill(out, node));
  }

  // The first rows, and the others behind a click.
  function fill(out, node) {
    const rows = [...[...node.children].map(([name, child]) => () => branch(name, child)),
      ...node.tensors.map(([name, tensor]) => () => leaf(tensor, name))];
    const shown = rows.length > MOST_CHILDREN + 3 ? rows.slice(0, MOST_CHILDREN) : rows, more = rows.slice(shown.length);
    out.append(...shown.map((make) => make()));
    if (more.length === 0) return;
    const head = element("summary", { class: "quiet" }, `${grouped(more.length)} more`);
    out.append(lazily(head, (place) => place.append(...more.map((make) => make()))));
  }

  // --- the filter
  const ORDERS = {
    key: null,
    size: (tensor) => tensor.bytes,
    norm: (tensor) => numberOf(tensor, "norm"),
    std: (tensor) => numberOf(tensor, "std"),
    "not finite": notFinite,
  };

  function found() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const dtype = byId("dtype").value, order = ORDERS[byId("order").value], onlyBad = byId("bad").checked;
    if (words.length === 0 && dtype === "" && !order && !onlyBad) return null;
    const out = tensors.filter((tensor) => words.every((word) => tensor.key.toLowerCase().includes(word))
      && (dtype === "" || tensor.dtype === dtype) && (!onlyBad || notFinite(tensor) > 0));
    if (order) {
      const value = (tensor) => { const number = order(tensor); return number === null ? -Infinity : number; };
      out.sort((a, b) => value(b) - value(a));
    }
    return out;
  }

  function showFound() {
    const list = found(), place = byId("found");
    byId("tensors").hidden = list !== null;
    place.hidden = list === null;
    place.replaceChildren();
    if (list === null) { byId("count").textContent = `${grouped(tensors.length)} tensors`; return; }
    byId("count").textContent = `${grouped(list.length)} of ${grouped(tensors.length)} tensors`
      + (list.length > MOST_FOUND ? `, the first ${MOST_FOUND} are shown` : "");
    place.append(...list.slice(0, MOST_FOUND).map((tensor) => leaf(tensor, tensor.key)));
  }

  // --- a number by layer
  function seriesOf(name) {
    const all = new Map();
    for (const tensor of tensors) {
      const parts = placeOf(tensor.key).split("."), at = parts.findIndex((part) => /^\d+$/.test(part));
      if (at < 0 || !tensor.numbers || tensor.shape.length === 0 || isNameless(tensor.key)) continue;
      const layer = Number(parts[at]);
      parts[at] = "*";
      const key = parts.join(".");
      if (!all.has(key)) all.set(key, []);
      all.get(key).push([layer, numberOf(tensor, name)]);
    }
    const out = [...all].filter(([, points]) => points.length > 1);
    for (const [, points] of out) points.sort((a, b) => a[0] - b[0]);
    return out;
  }

  function chart(key, points) {
    const width = 260, height = 80, floor = height - 16;
    const known = points.filter((point) => point[1] !== null);
    const values = known.map((point) => point[1]);
    const low = Math.min(...values), high = Math.max(...values), first = points[0][0], last = points[points.length - 1][0];
    const x = (layer) => last > first ? 4 + (layer - first) / (last - first) * (width - 8) : width / 2;
    const y = (value) => high > low ? floor - (value - low) / (high - low) * (floor - 16) : floor / 2;
    const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${key} by layer` });
    let run = [];
    const endRun = () => { if (run.length > 1) picture.append(drawn("polyline", { class: "curve", points: run.join(" ") })); run = []; };
    for (const [layer, value] of points) {
      if (value === null) { endRun(); continue; }
      run.push(`${x(layer).toFixed(1)},${y(value).toFixed(1)}`);
      const point = drawn("circle", { class: "point", cx: x(layer).toFixed(1), cy: y(value).toFixed(1), r: 2 });
      point.append(drawn("title", {}, `layer ${layer}: ${short(value)}`));
      picture.append(point);
    }
    endRun();
    picture.append(drawn("text", { x: 0, y: height - 2 }, `layer ${first}`));
    picture.append(drawn("text", { x: width, y: height - 2, "text-anchor": "end" }, String(last)));
    if (known.length > 0) picture.append(drawn("text", { x: width, y: 10, "text-anchor": "end" }, `${short(low)} to ${short(high)}`));
    return element("div", { class: "chart" }, element("span", { class: "key" }, key), picture);
  }

  function showCharts() {
    const all = seriesOf(byId("of").value);
    byId("charts").replaceChildren(...all.slice(0, MOST_CHARTS).map(([key, points]) => chart(key, points)));
    byId("more-charts").textContent = all.length > MOST_CHARTS ? `and ${all.length - MOST_CHARTS} more` : "";
    byId("layers").hidden = all.length === 0;
  }

  // --- the page
  for (const dtype of [...new Set(tensors.map((tensor) => tensor.dtype))].sort()) byId("dtype").append(element("option", { value: dtype }, dtype));
  for (const name of Object.keys(ORDERS)) byId("order").append(element("option", { value: name }, name));
  for (const name of ["norm", "std", "mean", "min", "max"]) byId("of").append(element("option", { value: name }, name));
  for (const id of ["filter", "dtype", "order", "bad"]) byId(id).addEventListener("input", showFound);
  byId("of").addEventListener("input", showCharts);
  fill(byId("tensors"), tree());
  for (const one of byId("tensors").children) { if (byId("tensors").children.length <= 3) one.open = true; }
  showFound();
  showCharts();
  for (const part of document.querySelectorAll("[data-script]")) part.hidden = false;
})();
