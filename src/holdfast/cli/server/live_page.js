"use strict";
// Draws the page with the REST API. All texts become text nodes: none of them is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const STATES = {
  healthy: ["Healthy", "good"], quiet: ["Quiet", "warn"], attention: ["Attention", "warn"],
  damaged: ["Damaged", "bad"], empty: ["No checkpoint", "warn"],
};
const STATUS = {
  COMPLETED: ["Completed", "good"], FAILED: ["Failed", "warn"],
  IN_PROGRESS: ["In progress", "good"], UNREADABLE: ["Unreadable", "bad"],
};
const SHOWN_ROWS = 8;
const content = document.getElementById("content");
const statusLine = document.getElementById("status");

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Whole numbers that a number of JavaScript can't represent stay texts.
const exact = (_, value, context) =>
  typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value;

async function read(path) {
  const answer = await fetch(path, {headers: {Accept: "application/json"}});
  const text = await answer.text();
  if (answer.status === 401) location.reload();
  let value;
  try { value = JSON.parse(text, exact); } catch { value = {errors: [`the server answers with status ${answer.status}`]}; }
  if (!answer.ok) throw new Error(value.errors.join("; "));
  return value;
}

const path = (...parts) => parts.map(encodeURIComponent).join("/");
const link = (...parts) => `#/${path(...parts)}`;

const known = format => value => value === null || value === undefined ? "-" : format(value);
const count = known(value => value.toLocaleString("en-US"));
const bytes = known(value => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${value.toFixed(unit ? 1 : 0)} ${units[unit]}`;
});
const ms = known(value => {
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${value.toFixed(0)} ms`;
  if (value < 60000) return `${(value / 1000).toFixed(1)} s`;
  const minutes = Math.floor(value / 60000);
  return minutes < 60 ? `${minutes} min ${Math.floor(value / 1000) % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
});
const time = known(value => {
  const date = new Date(value);
  return Number.isNaN(date.getTime()) ? "unknown" : date.toISOString().slice(0, 19).replace("T", " ");
});
const json = value => typeof value === "string" ? value : JSON.stringify(value);

const pill = ([text, kind]) => make("span", {class: `pill ${kind}`}, text);
const bdi = (text, kind) => make("bdi", {class: kind}, text);
const facts = pairs => make("dl", {class: "facts"}, Object.entries(pairs).map(
  ([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, bdi(value)))));
const list = items => make("ul", {class: "plain"}, items.map(item => make("li", {}, item)));

function table(caption, columns, rows) {
  const head = make("tr", {role: "row"}, columns.map(([name, , kind]) => make("th", {role: "columnheader", scope: "col", class: kind}, name)));
  const body = rows.map(row => make("tr", {role: "row"}, columns.map(([name, value, kind], index) =>
    index ? make("td", {role: "cell", "data-label": name, class: kind}, bdi(value(row)))
      : make("th", {role: "rowheader", scope: "row"}, bdi(value(row))))));
  return make("table", {class: "stacked", role: "table"}, make("caption", {}, caption),
    make("thead", {role: "rowgroup"}, head), make("tbody", {role: "rowgroup"}, body));
}

function folded(key, rows, what, render) {
  if (!rows.length) return [];
  const rest = rows.slice(SHOWN_ROWS);
  return [render(rows.slice(0, SHOWN_ROWS), what),
    rest.length > 0 && make("details", {"data-key": key}, make("summary", {}, `${count(rest.length)} more`), render(rest, `More: ${what}`))];
}

function figure(one) {
  const {chart} = one;
  const places = chart.places.map(place => draw("g", {}, draw("title", {}, place.title),
    draw("rect", {class: "hit", x: place.x, y: 0, width: place.width, height: 100}),
    place.shapes.map(({x, y, width, height, kind}) => draw("rect", {class: kind, x, y, width, height}))));
  const level = chart.level !== null && draw("line", {class: "level", x1: 0, x2: chart.width, y1: chart.level, y2: chart.level, "vector-effect": "non-scaling-stroke"});
  return make("figure", {},
    make("figcaption", {}, make("b", {}, one.name), " ", make("span", {}, one.summary)),
    draw("svg", {class: "chart", role: "img", "aria-label": one.label, viewBox: `0 0 ${chart.width} 100`, preserveAspectRatio: "none"}, places, level),
    make("p", {class: "ends"}, make("span", {}, one.first), make("span", {}, one.last)),
    one.legend.length > 0 && make("p", {class: "legend"}, one.legend.map((name, index) => make("span", {},
      draw("svg", {viewBox: "0 0 1 1", "aria-hidden": "true"}, draw("rect", {class: `part${index}`, width: 1, height: 1})), name))),
    chart.together > 1 && make("p", {class: "note"}, `Each bar is the highest of ${chart.together} neighbours.`));
}
const figures = all => all.length > 0 && make("div", {class: "figures"}, all.map(figure));

const section = (title, ...children) => make("section", {class: "job"},
  make("h2", {tabindex: "-1"}, bdi(title)), ...children);
const headline = one => make("p", {class: "headline"}, pill(STATES[one.state]), make("strong", {}, one.headline),
  one.error && make("span", {class: "bad"}, one.error));

// The views: each reads what it shows, and returns elements.

async function overview() {
  const all = await read("jobs");
  const errors = all.directories.filter(directory => directory.error);
  return section("Jobs",
    errors.length > 0 && list(errors.map(one => [pill(["Not readable", "bad"]), " ", bdi(one.uri, "place"), ": ", bdi(one.error)])),
    all.jobs.length ? table(`${count(all.jobs.length)} ${all.jobs.length === 1 ? "job" : "jobs"} in ${all.directories.map(one => one.uri).join(", ")}`, [
      ["Job", one => make("a", {href: link("job", one.id)}, one.name ? `${one.id} (${one.name})` : one.id)],
      ["State", one => pill(STATES[one.state]), "text"],
      ["Last checkpoint", one => one.error || one.headline, "text"],
      ["Newest", one => one.checkpoint === null ? "-" : `#${one.checkpoint}`],
      ["Size", one => bytes(one.new_bytes === null ? null : one.new_bytes + one.referenced_bytes)],
      ["Rows in", one => count(one.rows_in)],
    ], all.jobs) : make("p", {}, "No job has a checkpoint below these directories."));
}

function checkpointTable(job) {
  return (rows, caption) => table(caption, [
    ["Checkpoint", one => [one.is_retained && one.id !== null ? make("a", {href: link("job", job, "checkpoint", one.id)}, `#${one.id}`) : `#${one.id}`,
      one.batch === null ? "" : make("small", {}, ` batch ${one.batch}`)]],
    ["Status", one => [pill(STATUS[one.status]), one.is_retained || one.status !== "COMPLETED" ? "" : " deleted", one.failure_message ? make("small", {}, ` ${one.failure_message}`) : ""], "text"],
    ["Completed", one => time(one.latest_ack_timestamp)],
    ["Duration", one => ms(one.end_to_end_duration)],
    ["New", one => bytes(one.checkpointed_size)],
    ["Total", one => bytes(one.state_size)],
    ["Rows in", one => count(one.rows_in)],
    ["Rows late", one => count(one.rows_late)],
    ["Rows out", one => count(one.rows_out)],
  ], rows);
}

const savepointList = rows => list(rows.map(one => one.status === "UNREADABLE"
  ? [pill(STATUS.UNREADABLE), " ", bdi(one.external_path, "place"), ": ", bdi(one.failure_message)]
  : [`${time(one.latest_ack_timestamp)}, ${bytes(one.state_size)}, checkpoint ${one.id}`, make("br"), bdi(one.external_path, "place")]));

function sweepOf(job) {
  const place = make("div", {"aria-live": "polite"});
  const button = make("button", {type: "button"}, "Find files");
  button.addEventListener("click", async () => {
    place.replaceChildren(make("p", {}, "Reading all checkpoints"));
    try {
      const {sweep, grace_s: grace} = await read(path("jobs", job, "sweep"));
      place.replaceChildren(...describeSweep(sweep, grace));
    } catch (error) { place.replaceChildren(make("p", {class: "bad"}, error.message)); }
  });
  return [make("h3", {}, "What a sweep would delete"), button, place];
}

function describeSweep(sweep, grace) {
  if (!sweep) return [make("p", {}, "The job has no directory.")];
  if (sweep.error) return [make("p", {}, pill(["Not known", "warn"]), " A sweep would delete nothing now: ", bdi(sweep.error))];
  const found = sweep.files.length + sweep.directories.length;
  return [make("p", {}, found ? `${count(sweep.files.length)} files, ${bytes(sweep.bytes)}, and ${count(sweep.directories.length)} directories.` : "Nothing.",
    ` ${count(sweep.within_grace)} more are younger than ${count(grace / 3600)} h.`),
  ...folded("files", sweep.files, "Files", (rows, what) => make("div", {}, make("p", {class: "note"}, what),
    list(rows.map(one => [bdi(one.uri, "place"), ` ${one.bytes === null ? "unfinished upload" : bytes(one.bytes)}`]))))];
}

const total = values => values.length ? values.reduce((sum, value) => sum + value, 0) : null;
const largest = values => values.length ? Math.max(...values) : null;
const LIVE = [
  ["Source lag, rows", "holdfast_source_lag_rows", total, count], ["Failed checkpoints", "holdfast_checkpoints_failed_total", total, count],
  ["Rows of state", "holdfast_state_rows", total, count], ["Pending timers", "holdfast_timers_pending", total, count],
  ["Store calls", "holdfast_store_calls_total", total, count], ["Retries", "holdfast_store_retries_total", total, count],
  ["Largest worker", "holdfast_worker_peak_memory_bytes", largest, bytes],
];

function driver({metrics, errors}) {
  if (!metrics.length && !errors.length) return [];
  const values = LIVE.map(([title, id, combine, format]) => [title, combine(metrics.filter(one => one.id === id).map(one => one.value)), format]);
  return [make("h3", {}, "The driver, now"), facts(Object.fromEntries(values.filter(([, value]) => value !== null).map(([title, value, format]) => [title, format(value)]))),
    errors.map(error => make("p", {class: "note"}, bdi(error))),
    ...folded("metrics", metrics, "Metrics", (rows, what) => table(what, [
      ["Metric", one => one.id], ["Labels", one => Object.entries(one.labels).map(([name, value]) => `${name}=${value}`).join(", "), "text"],
      ["Value", one => one.value.toLocaleString("en-US")]], rows))];
}

async function jobView(job) {
  const [details, history, saved, live] = await Promise.all([
    read(path("jobs", job)), read(`${path("jobs", job)}/checkpoints`), read(path("jobs", job, "savepoints")), read(path("jobs", job, "metrics"))]);
  const one = details.overview;
  const newest = one.checkpoint === null ? null
    : await read(path("jobs", job, "checkpoints", "details", one.checkpoint)).catch(error => ({error}));
  return section(one.name ? `${one.id} (${one.name})` : one.id, headline(one),
    make("p", {class: "note"}, bdi(one.directory, "place")),
    one.checkpoint !== null && facts({
      Newest: `#${one.checkpoint}`, Retained: `${count(one.retained)} of ${count(history.counts.completed)}`,
      Restarts: count(history.counts.restored), "Newly written": bytes(one.new_bytes), Referenced: bytes(one.referenced_bytes),
      "Rows in": count(one.rows_in), "One every": ms(one.median_interval_ms),
    }),
    driver(live), figures(details.figures),
    (details.restarts.length > 0 || details.failed_attempts.length > 0 || details.history_error) && make("h3", {}, "Restarts and failed attempts"),
    details.history_error && make("p", {}, pill(["Not known", "warn"]), " Older history can't be read: ", bdi(details.history_error)),
    ...folded("restarts", details.restarts, "Restarts", rows => list(rows.map(row =>
      `Restarted from #${row.restored_checkpoint} in epoch ${row.epoch}; #${row.checkpoint} at ${time(row.completed_ms)}`))),
    ...folded("attempts", details.failed_attempts, "Failed attempts", rows => list(rows.map(row =>
      [pill(STATUS.FAILED), ` #${row.checkpoint}, batch ${row.batch}, after ${ms(row.duration_ms)}, at ${time(row.failed_ms)}: `, bdi(row.reason)]))),
    make("h3", {}, "Checkpoints"),
    ...folded("checkpoints", history.history, "Newest first", checkpointTable(job)),
    history.history.length === 0 && make("p", {}, "None."),
    details.gaps.length > 0 && make("p", {class: "note"}, "Missing between them: ",
      details.gaps.map(([first, last]) => first === last ? `#${first}` : `#${first} to #${last}`).join(", ")),
    newest && (newest.error ? make("p", {class: "bad"}, newest.error.message) : checkpointContent(job, newest)),
    saved.savepoints.length > 0 && make("h3", {}, "Savepoints"), ...folded("savepoints", saved.savepoints, "Savepoints", savepointList),
    sweepOf(job));
}

function checkpointContent(job, {checkpoint, tasks, content: values}) {
  if (!values) return [];
  const {spark} = values;
  return [
    spark && [make("h3", {}, `Sources as of #${checkpoint.id}`),
      spark.sources.length ? list(spark.sources.map((source, index) => [`Source ${index}: `, make("code", {}, json(source))])) : make("p", {}, "None."),
      spark.watermark ? make("p", {}, `Watermark ${time(spark.watermark)}`) : null],
    make("h3", {}, `Operators and states as of #${checkpoint.id}`),
    Object.entries(values.operators).map(([uid, operator]) => make("div", {class: "operator"},
      make("h4", {}, make("a", {href: link("job", job, "checkpoint", checkpoint.id, "operator", uid)}, bdi(uid))),
      make("p", {class: "note"}, `${count(operator.parallelism)} subtasks, at most ${count(operator.max_parallelism)}; state of ${bytes(tasks[uid].state_size)}`,
        operator.key.length ? ["; rows by ", bdi(operator.key.join(", "))] : ""),
      ...folded(`states-${uid}`, operator.states, "States", (rows, what) => table(what, [
        ["State", one => one.state === null ? "-" : make("a", {href: link("job", job, "state", uid, one.state, one.kind)}, one.state)],
        ["Kind", one => one.kind, "text"], ["Stored", one => count(one.stored_elements)], ["Size", one => bytes(one.bytes)],
        ["Type", one => one.failure || one.type, "text"],
      ], rows)))),
  ];
}

async function checkpointView(job, id) {
  const details = await read(path("jobs", job, "checkpoints", "details", id));
  const one = details.checkpoint;
  return section(`Checkpoint ${id} of ${job}`, make("p", {class: "headline"}, pill(STATUS[one.status]), bdi(one.failure_message)),
    facts({
      Completed: time(one.latest_ack_timestamp), Duration: ms(one.end_to_end_duration), "Newly written": bytes(one.checkpointed_size),
      Total: bytes(one.state_size), Batch: one.batch === null ? "-" : `${one.batch}`, Epoch: one.epoch === null ? "-" : `${one.epoch}`, "Rows in": count(one.rows_in), "Rows out": count(one.rows_out),
    }),
    make("p", {class: "note"}, bdi(one.external_path, "place")), checkpointContent(job, details));
}

async function operatorView(job, id, uid) {
  const one = await read(path("jobs", job, "checkpoints", "details", id, "subtasks", uid));
  const skew = Object.entries(one.skew).filter(([, factor]) => factor >= 1.2).map(([name, factor]) => `${name} ${factor.toFixed(1)} times the mean`);
  return section(`Operator ${uid} in checkpoint ${id}`,
    make("p", {}, skew.length ? `Skew, in the largest subtask: ${skew.join(", ")}.` : "The subtasks are even."), figures(one.figures),
    ...folded("subtasks", [...one.subtasks].sort((a, b) => b.stored_bytes - a.stored_bytes), "Subtasks, largest state first", (rows, what) => table(what, [
      ["Subtask", row => `${row.subtask}`], ["State", row => bytes(row.stored_bytes)], ["Written", row => bytes(row.state_bytes)],
      ["Rows in", row => count(row.rows_in)], ["Rows late", row => count(row.rows_late)], ["Rows out", row => count(row.rows_out)],
      ["Restore", row => ms(row.restore_ms)], ["Process", row => ms(row.process_ms)],
      ["Snapshot", row => ms(row.sync_ms === null ? null : row.sync_ms + row.async_ms)], ["Restored from", row => row.restored_from || "-"],
    ], rows)));
}

const freshness = one => `As of checkpoint ${one.checkpoint}${one.batch === null ? "" : `, batch ${one.batch}`}, completed ${time(one.completed_ms)}, ${ms(Math.max(0, one.age_ms))} ago.`;

function lookup(job, uid, state, kind, columns) {
  const result = make("div", {"aria-live": "polite"});
  const fields = Object.entries(columns).map(([name, type], index) => [name, make("input", {id: `key-${index}`, name, autocomplete: "off", required: true}), type]);
  const form = make("form", {class: "form"},
    fields.map(([name, input, type]) => make("div", {}, make("label", {for: input.id}, `${name} (${type})`), input)), make("button", {}, "Look up"));
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const query = new URLSearchParams([["kind", kind], ...fields.map(([name, input]) => [`key.${name}`, input.value])]);
    try {
      const found = await read(`${path("jobs", job, "states", uid, state, "value")}?${query}`);
      result.replaceChildren(make("p", {class: "note"}, freshness(found.freshness)),
        found.rows.length ? make("pre", {tabindex: "0", "aria-label": "Rows of the key"}, found.rows.map(row => JSON.stringify(row, null, 2)).join("\n")) : make("p", {}, "The state has no rows of that key."),
        found.is_complete ? "" : make("p", {}, "The key has more rows."));
    } catch (error) { result.replaceChildren(make("p", {class: "bad"}, error.message)); }
  });
  return [make("h3", {}, "Look up a key"), form, result];
}

async function stateView(job, uid, state, kind) {
  const one = await read(`${path("jobs", job, "states", uid, state)}?${new URLSearchParams([["kind", kind]])}`);
  const groups = one.key_groups;
  return section(`State ${state} of ${uid}`, make("p", {class: "note"}, freshness(one.freshness)),
    facts({Kind: one.state.kind, Stored: count(one.state.stored_elements), Size: bytes(one.state.bytes)}),
    one.state.failure ? make("p", {class: "bad"}, one.state.failure) : table("Columns", [
      ["Column", row => row.name], ["Type", row => row.type, "text"], ["Arrow type", row => row.arrow_type, "text"], ["Stored as", row => row.stored_as, "text"]], one.state.columns),
    Object.keys(one.key).length > 0 && lookup(job, uid, state, kind, one.key),
    groups && [make("h3", {}, "Keys"), groups.is_complete ? null : make("p", {class: "note"}, "The state is large: these are the first subtasks only."), figures([groups.figure]),
      ...folded("keys", groups.largest_keys, "Largest keys; sizes are those of Arrow data", (rows, what) => table(what, [
        ["Key", row => Object.entries(row.key).map(([name, value]) => `${name}=${json(value)}`).join(", ")],
        ["Rows", row => count(row.rows)], ["Size", row => bytes(row.bytes)]], rows))],
    make("h3", {}, "Parts"),
    ...folded("parts", one.subtasks, "Subtasks", (rows, what) => table(what, [
      ["Subtask", row => `${row.subtask}`], ["Stored", row => count(row.stored_elements)], ["Size", row => bytes(row.bytes)],
      ["Key groups", row => row.key_groups ? `${row.key_groups[0]} to ${row.key_groups[1]}` : "-"]], rows)));
}

// Routes are in the fragment of the address, so that a view has a link and the server one page.

function route() {
  let parts = [];
  try { parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent); } catch { /* not a link of this page */ }
  const [, job, kind, first, second, third] = parts;
  const trail = [["Jobs", "#/"]];
  if (parts[0] !== "job" || !job) return {view: overview, trail, title: "Jobs", job: null};
  trail.push([job, link("job", job)]);
  const title = [job, kind, first, third ?? second].filter(Boolean).join(" ");
  if (kind === "state" && second) return {view: () => stateView(job, first, second, third ?? ""), trail, title, job, isForm: true};
  if (kind !== "checkpoint" || !first) return {view: () => jobView(job), trail, title, job};
  trail.push([`Checkpoint ${first}`, link("job", job, "checkpoint", first)]);
  if (second === "operator" && third) return {view: () => operatorView(job, first, third), trail, title, job};
  return {view: () => checkpointView(job, first), trail, title, job};
}

let drawing = 0;

async function show({isNew}) {
  const here = route();
  const number = drawing += 1;
  document.title = `${here.title} - Holdfast`;
  const steps = here.trail.map(([name, href], index) =>
    make("li", {}, make("a", {href, "aria-current": index === here.trail.length - 1 && "location"}, bdi(name))));
  if (isNew) content.setAttribute("aria-busy", "true");
  if (isNew) document.getElementById("trail").replaceChildren(make("ol", {}, steps));
  let view;
  try {
    view = await here.view();
  } catch (error) {
    view = section("Not readable", make("p", {class: "bad", role: "alert"}, error.message));
  }
  if (number !== drawing) return;
  const open = new Set([...content.querySelectorAll("details[open]")].map(one => one.dataset.key));
  const focused = content.contains(document.activeElement) && document.activeElement.getAttribute("href");
  content.replaceChildren(view);
  content.setAttribute("aria-busy", "false");
  if (isNew) {
    window.scrollTo(0, 0);
    content.querySelector("h2").focus({preventScroll: true});
    return;
  }
  for (const one of content.querySelectorAll("details")) one.open = open.has(one.dataset.key);
  if (focused) [...content.querySelectorAll("a")].find(one => one.getAttribute("href") === focused)?.focus({preventScroll: true});
}

function say(text, isOffline = false) {
  statusLine.textContent = text;
  statusLine.classList.toggle("offline", isOffline);
}

function follow() {
  const events = new EventSource("events");
  let wasOpen = false;
  events.addEventListener("open", () => {
    say("Live");
    if (wasOpen) update(null);
    wasOpen = true;
  });
  events.addEventListener("error", () => say("No connection to the server; trying again", true));
  events.addEventListener("change", event => update(JSON.parse(event.data).job));
  events.addEventListener("checkpoint", event => {
    const {job, checkpoint} = JSON.parse(event.data);
    say(`Checkpoint ${checkpoint} of job ${job} completed at ${time(Date.now())}`);
  });
  events.addEventListener("failure", event => say(`A checkpoint of job ${JSON.parse(event.data).job} failed at ${time(Date.now())}`, true));
}

function update(job) {
  const here = route();
  // A form in use stays as it is, and so does the answer to it.
  if (!here.isForm && (here.job === null || job === null || here.job === job)) show({isNew: false});
}

window.addEventListener("hashchange", () => show({isNew: true}));
document.querySelector(".skip").addEventListener("click", event => {
  event.preventDefault();
  content.focus();
});
// Ages grow, and a job becomes quiet, without an event.
setInterval(() => update(null), 30000);
show({isNew: true});
follow();
