"use strict";
// Unpacks the data, sorts and filters tables, expands rows, and draws charts when they scroll into view.

const unpacked = {};

// Returns the decompressed text of an element.
async function unpack(id) {
  const letters = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function values() {
  unpacked.values ??= unpack("values").then(JSON.parse);
  return unpacked.values;
}

// The library is slow to parse, so it is loaded with the first chart.
function library() {
  unpacked.library ??= unpack("library").then((source) => {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
    return window.Plotly;
  });
  return unpacked.library;
}

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = className;
  return made;
}

// Charts ----------------------------------------------------------------------------------------------------------------

const SHARED = {
  autosize: true,
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  font: { family: "system-ui, sans-serif", size: 11 },
  showlegend: false, // the page has its own, which never covers an axis
  hovermode: "closest",
  dragmode: false,
};
const MARGIN = { l: 56, r: 14, t: 8, b: 40 };
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };

// Returns a chart's layout merged with the common one; margins fit titles and labels of axes.
function whole(layout) {
  const made = { ...SHARED, ...layout, margin: { ...MARGIN, ...layout.margin } };
  for (const name of Object.keys(made).filter((key) => /^[xy]axis/.test(key))) {
    made[name] = { automargin: true, ...made[name] };
  }
  return made;
}

// Unescapes names that were escaped for Plotly, as text, never as tags.
function plain(name) {
  return new DOMParser().parseFromString(name, "text/html").documentElement.textContent;
}

// Returns a chart's legend, with one button per entry that toggles its lines.
function legend(plot, data) {
  const groups = new Map();
  data.forEach((trace, number) => {
    const group = trace.legendgroup ?? `trace ${number}`;
    if (!groups.has(group)) groups.set(group, { name: "", colour: "", traces: [] });
    const entry = groups.get(group);
    entry.traces.push(number);
    if (trace.showlegend === false || !trace.name) return;
    entry.name = plain(trace.name);
    entry.colour = trace.line?.color ?? trace.marker?.color ?? "";
  });
  const named = [...groups.values()].filter((entry) => entry.name);
  const list = element("div", "", "legend");
  for (const entry of named.length > 1 ? named : []) {
    const button = element("button");
    const mark = element("i");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    mark.style.background = entry.colour;
    button.append(mark, element("bdi", entry.name));
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!shown));
      window.Plotly.restyle(plot, { visible: !shown }, entry.traces);
    });
    list.append(button);
  }
  return list;
}

async function drawing(plot) {
  try {
    const [plotly, { charts }] = await Promise.all([library(), values()]);
    const { data, layout } = charts[plot.dataset.chart];
    await plotly.newPlot(plot, data, whole(layout), CONFIG);
    follow(plot);
    if (data[0]?.type !== "heatmap") plot.before(legend(plot, data));
  } catch (error) {
    plot.replaceChildren(element("p", `This chart could not be drawn: ${error}`, "failed"));
  }
}

// Hides the lines and points of rows that the filter hides.
function follow(plot) {
  const section = plot.closest(".protocol, .overview");
  if (!section || !plot.data) return;
  const bodies = [...section.querySelectorAll("tbody")];
  const hidden = new Set(bodies.filter((body) => body.hidden).map((body) => body.dataset.name));
  const columns = [...section.querySelectorAll("th[data-place]")];
  const places = new Set(columns.filter((each) => each.hidden).map((each) => Number(each.dataset.place)));
  const own = plot.data.map((trace, number) => [trace, number]).filter(([trace]) => trace.meta?.row !== undefined);
  const visible = own.map(([{ meta }]) => !hidden.has(meta.row.toLowerCase()) && !places.has(meta.place));
  if (own.length) window.Plotly.restyle(plot, { visible }, own.map(([, number]) => number));
}

const drawn = new Map();

function draw(plot) {
  if (!drawn.has(plot)) drawn.set(plot, drawing(plot));
  return drawn.get(plot);
}

const seen = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "300px" },
);
const plots = [...document.querySelectorAll(".plot")];
plots.forEach((plot) => seen.observe(plot));

// A browser does not wait for charts when it prints, so charts out of view are drawn when idle.
const AHEAD = 150;

// Filtered charts have no width yet; they are drawn when they come into view.
function visible(plot) {
  return plot.offsetParent !== null;
}

async function drawAhead() {
  for (const plot of plots.slice(0, AHEAD)) {
    await new Promise((next) => (window.requestIdleCallback ?? setTimeout)(next));
    if (visible(plot)) await draw(plot);
  }
}

window.addEventListener("load", drawAhead);

// Chart widths on paper: two columns, or one wide chart (same numbers as in page.css).
const PRINTED = { narrow: 330, wide: 676 };

const opened = [];

window.addEventListener("beforeprint", () => {
  opened.push(...document.querySelectorAll("details:not([open])"));
  opened.forEach((part) => (part.open = true));
  for (const plot of plots.filter((each) => each.data)) {
    const wide = plot.closest("figure").classList.contains("wide");
    window.Plotly.relayout(plot, { width: wide ? PRINTED.wide : PRINTED.narrow });
  }
});
window.addEventListener("afterprint", () => {
  opened.splice(0).forEach((part) => (part.open = false));
  for (const plot of plots.filter((each) => each.data)) window.Plotly.relayout(plot, { width: null, autosize: true });
});

document.getElementById("print").addEventListener("click", async () => {
  await Promise.all(plots.filter(visible).map(draw));
  window.print();
});

// Fold-outs -------------------------------------------------------------------------------------------------------------

function told(run) {
  const article = element("article");
  article.append(element("h4", run.heading), element("pre", run.command));
  const list = element("dl");
  for (const [name, text] of run.facts) list.append(element("dt", name), element("dd", text));
  article.append(list);
  if (run.changes.length) {
    article.append(element("h4", "differences from the preset"));
    const changes = element("dl");
    for (const [path, before, after] of run.changes) {
      changes.append(element("dt", path), element("dd", `${before} → ${after}`));
    }
    article.append(changes);
  }
  return article;
}

async function unfold(button) {
  const body = button.closest("tbody");
  const open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) {
    body.querySelectorAll(".fold").forEach((row) => row.remove());
    return;
  }
  const { runs } = await values();
  if (button.getAttribute("aria-expanded") === "false" || body.querySelector(".fold")) return;
  const row = element("tr", "", "fold");
  const cell = element("td");
  cell.colSpan = body.rows[0].cells.length;
  cell.append(...runs[button.dataset.runs].map(told));
  row.append(cell);
  body.append(row);
}

// Sorting: the best first; text ascending, numbers descending unless less is better, missing numbers last -----

function sort(heading) {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const before = heading.getAttribute("aria-sort");
  table.querySelectorAll("th[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
  const first = heading.dataset.first ?? (column === 0 ? "ascending" : "descending");
  const second = first === "ascending" ? "descending" : "ascending";
  const order = before === first ? second : first;
  heading.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const key = (body) => body.rows[0].cells[column].dataset.order;
  const bodies = [...table.tBodies].filter((body) => body.dataset.name !== undefined).sort((one, other) => {
    const [left, right] = [key(one), key(other)];
    if (left === "" || right === "") return (left === "") - (right === "");
    return sign * (column === 0 ? left.localeCompare(right) : Number(left) - Number(right));
  });
  table.append(...bodies);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("th button");
  if (button) button.dataset.runs === undefined ? sort(button.closest("th")) : unfold(button);
});

// Filtering -------------------------------------------------------------------------------------------------------------

const words = document.getElementById("words");
const protocol = document.getElementById("protocol");

function filter() {
  const asked = words.value.trim().toLowerCase();
  let rows = 0;
  for (const section of document.querySelectorAll(".protocol")) {
    const chosen = protocol.value === "" || protocol.value === section.dataset.place;
    const titled = section.dataset.title.includes(asked);
    let shown = 0;
    for (const body of section.querySelectorAll("tbody")) {
      body.hidden = !(titled || body.dataset.name.includes(asked));
      shown += !body.hidden;
    }
    section.hidden = !chosen || shown === 0;
    section.querySelectorAll(".plot").forEach(follow);
    if (!section.hidden) rows += shown;
  }
  document.querySelectorAll(".overview").forEach((section) => filterOverview(section, asked));
  const total = document.querySelectorAll(".protocol tbody").length;
  document.getElementById("matches").textContent = rows < total ? `${rows} of ${total} rows` : "";
}

// Hides the variants and the tasks that were not asked for. Words that name tasks only leave all variants.
function filterOverview(section, asked) {
  const titles = new Map([...document.querySelectorAll(".protocol")].map((each) => [each.dataset.place, each.dataset.title]));
  const headings = [...section.querySelectorAll("th[data-place]")];
  const bodies = [...section.querySelectorAll("tbody[data-name]")];
  const named = headings.filter((each) => titles.get(each.dataset.place).includes(asked));
  const variants = bodies.filter((body) => body.dataset.name.includes(asked));
  for (const heading of headings) {
    const chosen = protocol.value === "" || protocol.value === heading.dataset.place;
    heading.hidden = !chosen || (named.length > 0 && !named.includes(heading));
    for (const row of section.querySelectorAll("tbody > tr, tfoot > tr")) row.cells[heading.cellIndex].hidden = heading.hidden;
  }
  const all = headings.every((each) => !each.hidden); // total and time are over all tasks
  for (const heading of section.querySelectorAll("th.total, th.time")) {
    heading.hidden = !all;
    for (const row of section.querySelectorAll("tbody > tr, tfoot > tr")) row.cells[heading.cellIndex].hidden = !all;
  }
  for (const body of bodies) body.hidden = variants.length > 0 ? !variants.includes(body) : named.length === 0;
  section.querySelectorAll(".plot").forEach(follow);
}

document.querySelector(".filter").addEventListener("submit", (event) => event.preventDefault());
words.addEventListener("input", filter);
protocol.addEventListener("change", filter);
document.getElementById("choice").open = window.innerWidth > 600; // a phone shows the overview first
filter();
