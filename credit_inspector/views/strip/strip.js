// The token strip: every token of one response, coloured by any of its signals. No network, no framework.
//
//   mount(root, payload, { onSelect, state })
//
// root      an element or shadow root that the strip may fill. What a reader chose is kept on it.
// payload   what credit_inspector.views.strip.payload() wrote. Another id rebuilds the strip, the same id repaints it.
// onSelect  called with a token's position when a reader clicks it or presses Enter on it.
// state     what to show first: { signal, underline, transform: "linear" | "log", mask: "trained" | "all",
//           by: "token" | "sum" | "mean", token, until }. token is scrolled to, token to until (exclusive) are marked.
//           It acts when it differs from the one given before, so that a host may repeat it without undoing a choice.
//
// All text from the payload reaches the page as a text node or an attribute value, never as markup.

const VERSION = 1;
const LEAST_BLOCK = 128; // tokens; fewer would make more boxes than content-visibility saves
const MOST_BLOCK = 1024; // tokens; more would make the first paint of one block slow
const CHIPS = 5; // signals shown as buttons before the rest goes into a list
const LOG_FROM = 100; // the log scale is linear below a hundredth of the limit
const FAINT = 0.05; // an underline below this part of its limit is not drawn: estimates near zero are noise

const DEFAULTS = { transform: "linear", mask: "trained", by: "token", token: null, until: null };

export function mount(root, payload, { onSelect, state } = {}) {
  if (payload.version !== VERSION) throw new Error(`strip payload version ${payload.version}, this strip reads ${VERSION}`);
  let strip = root.__strip;
  if (!strip || strip.id !== payload.id || strip.n !== payload.pieces.length) strip = root.__strip = build(root, payload);
  else if (strip.payload !== payload) refresh(strip, payload);
  strip.onSelect = onSelect ?? (() => {});
  take(strip, state ?? {});
  paint(strip);
}

// ── the payload, decoded ────────────────────────────────────────────────────────────────────────────────────────────

function bytes(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)).buffer;
}

function decode(payload) {
  const n = payload.pieces.length;
  const kinds = payload.kinds.flatMap(([kind, count]) => Array(count).fill(kind));
  const spanOf = new Int32Array(n).fill(-1);
  payload.spans.forEach((span, s) => spanOf.fill(s, span.start, span.end));
  return {
    n,
    id: payload.id,
    payload,
    pieces: payload.pieces,
    kinds,
    spanOf,
    spans: payload.spans,
    clusters: new Int32Array(bytes(payload.clusters)),
    tokenIds: new Int32Array(bytes(payload.token_ids)),
    signals: decodeSignals(payload),
    totals: new Map(),
  };
}

function decodeSignals(payload) {
  return new Map(payload.signals.map((s) => [s.name, { ...s, values: new Float32Array(bytes(s.values)) }]));
}

const trained = (strip, i) => strip.kinds[i] === "response" || strip.kinds[i] === "end";

// ── building, once for each payload ─────────────────────────────────────────────────────────────────────────────────

function build(root, payload) {
  root.__strip?.stop.abort();
  root.__strip?.box.remove();
  const strip = { ...decode(payload), tokens: [], written: [], segments: [], shown: new Set(), hits: [], marked: [] };
  strip.stop = new AbortController();
  strip.state = { ...DEFAULTS, ...firstSignals(payload) };
  strip.box = tag("section", "ci-strip", { "aria-label": `Tokens: ${payload.title}` });
  strip.title = tag("h3", "ci-title", {}, payload.title);
  strip.bar = tag("div", "ci-bar");
  strip.finder = finder(strip);
  strip.text = tag("div", "ci-text", { tabindex: 0, role: "group", "aria-label": "tokens: arrow keys move, Enter pins, ? help" });
  strip.legend = tag("div", "ci-legend");
  strip.help = helpPanel();
  strip.tip = tag("div", "ci-tip", { role: "tooltip", popover: "manual" });
  strip.status = tag("div", "ci-status", { role: "status", "aria-live": "polite" });
  strip.box.append(strip.title, strip.bar, strip.finder.row, strip.text, strip.legend, strip.help, strip.status, strip.tip);
  controls(strip);
  writeTokens(strip);
  listen(strip);
  root.append(strip.box);
  watch(strip);
  return strip;
}

function refresh(strip, payload) {
  strip.payload = payload;
  strip.signals = decodeSignals(payload);
  strip.totals.clear();
  if (!strip.signals.has(strip.state.signal)) strip.state.signal = firstSignals(payload).signal;
  if (!strip.signals.has(strip.state.underline)) strip.state.underline = "";
  controls(strip);
}

function firstSignals(payload) {
  return { signal: payload.fill || payload.signals[0]?.name || "", underline: payload.underline };
}

function take(strip, given) {
  const said = JSON.stringify(given);
  if (said === strip.given) return;
  strip.given = said;
  const known = { ...given };
  for (const key of ["signal", "underline"]) if (known[key] && !strip.signals.has(known[key])) delete known[key];
  Object.assign(strip.state, known);
  if (Number.isInteger(given.token) && given.token >= 0 && given.token < strip.n) goTo(strip, given.token, given.until);
}

function tag(name, className = "", attributes = {}, text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

// ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function writeTokens(strip) {
  let prompt = 0;
  while (prompt < strip.n && strip.kinds[prompt] === "prompt") prompt += 1;
  if (prompt) strip.text.append(foldButton(strip, prompt), foldedPrompt(strip, prompt));
  writeBlocks(strip, strip.text, prompt, strip.n);
}

function foldButton(strip, prompt) {
  const button = tag("button", "ci-fold", { type: "button", "aria-expanded": "false" });
  const preview = strip.pieces.slice(0, Math.min(prompt, 200)).join("").replace(/\s+/gu, " ").trim();
  button.append(tag("span", "ci-fold-what", {}, `prompt · ${strip.tokenIds[0] < 0 ? wordsOf(prompt) : tokensOf(prompt)}`), tag("span", "ci-fold-text", {}, preview));
  button.addEventListener("click", () => fold(strip, !strip.folded));
  strip.foldButton = button;
  return button;
}

function foldedPrompt(strip, prompt) {
  strip.prompt = tag("div", "ci-prompt");
  writeBlocks(strip, strip.prompt, 0, prompt);
  // "until-found" lets the browser's own search look into it
  strip.prompt.addEventListener("beforematch", () => fold(strip, false));
  fold(strip, true);
  return strip.prompt;
}

function fold(strip, folded) {
  strip.folded = folded;
  if (folded) strip.prompt.setAttribute("hidden", "until-found");
  else strip.prompt.removeAttribute("hidden");
  strip.foldButton.setAttribute("aria-expanded", String(!folded));
}

function writeBlocks(strip, parent, from, to) {
  for (let start = from; start < to; ) {
    const end = blockEnd(strip.pieces, start, to);
    parent.append(writeBlock(strip, start, end));
    start = end;
  }
}

// A block ends after a token that ends its line, so that the cut shows nowhere.
function blockEnd(pieces, start, to) {
  const most = Math.min(to, start + MOST_BLOCK);
  for (let i = start + LEAST_BLOCK - 1; i < most; i += 1) if (pieces[i].endsWith("\n")) return i + 1;
  return most;
}

function writeBlock(strip, start, end) {
  const block = tag("div", "ci-block");
  block.__segments = [];
  let segment = null;
  let last = null;
  for (let i = start; i < end; i += 1) {
    const key = segmentKey(strip, i);
    if (key !== last) segment = key === "" ? block : openSegment(strip, block, i, start);
    last = key;
    segment.append(writeToken(strip, i));
  }
  if (block.__segments.length) block.classList.add("ci-labelled");
  block.style.containIntrinsicBlockSize = `auto ${roughHeight(strip.pieces, start, end, block.__segments.length)}px`;
  return block;
}

const segmentKey = (strip, i) => (strip.spanOf[i] >= 0 ? `span ${strip.spanOf[i]}` : "") + (strip.kinds[i] === "masked" ? " masked" : "");

function openSegment(strip, block, i, blockStart) {
  const span = strip.spans[strip.spanOf[i]];
  const masked = strip.kinds[i] === "masked";
  const continued = i === blockStart && i > 0 && segmentKey(strip, i - 1) === segmentKey(strip, i);
  const words = [];
  if (span) words.push(span.label);
  if (masked) words.push("not trained");
  if (span && !continued) words.push(...span.detail.split(" · ").filter(Boolean));
  if (continued) words[0] = `… ${words[0]}`;
  const segment = tag("span", `ci-seg ${masked ? "ci-tone-masked" : tone(span.label)}`);
  segment.__words = words;
  segment.setAttribute("data-label", words[0]);
  block.append(segment);
  block.__segments.push(segment);
  return segment;
}

const TONES = ["unearned", "earned", "answer", "unsure", "punished"];

function tone(label) {
  return `ci-tone-${TONES.find((word) => label.toLowerCase().split(/\W+/u).includes(word)) ?? "other"}`;
}

function roughHeight(pieces, start, end, labelled) {
  const text = pieces.slice(start, end).join("");
  const lines = text.split("\n").reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / 90)), 0);
  return lines * (labelled ? 46 : 32);
}

function writeToken(strip, i) {
  const token = tag("span");
  token.__i = i;
  token.setAttribute("data-i", i);
  writePiece(token, strip.pieces[i]);
  strip.tokens.push(token);
  strip.written.push("");
  return token;
}

// What names a token for good; paint adds the rest.
function tokenClass(strip, i) {
  const piece = strip.pieces[i];
  const kind = strip.kinds[i];
  let name = `ci-t ci-is-${kind}`;
  if (strip.clusters[i] !== i) name += " ci-part";
  else if (piece === "") name += " ci-empty";
  else if (INVISIBLE.test(piece)) name += " ci-space";
  return name;
}

// ── text that would not be seen: marks stand in ::before, so that copied text is the text ───────────────────────────

const INVISIBLE = /^[\s\p{Cc}\u00ad\u200b-\u200f\u2060-\u2064\ufeff\u3164\u2800]+$/u;
const ALWAYS_MARKED = /[\n\r\t\v\f\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069]/u;

function writePiece(token, piece) {
  const alone = INVISIBLE.test(piece);
  if (!alone && !ALWAYS_MARKED.test(piece)) {
    token.textContent = piece;
    return;
  }
  let plain = "";
  for (const char of piece) {
    if (!alone && !ALWAYS_MARKED.test(char)) {
      plain += char;
      continue;
    }
    if (plain) token.append(document.createTextNode(plain));
    plain = "";
    token.append(marked(char));
  }
  if (plain) token.append(document.createTextNode(plain));
}

function marked(char) {
  const kind = char === "\n" ? "ci-break" : char === " " || char === "\t" ? "ci-over" : "ci-hidden";
  const element = tag("i", `ci-mark ${kind}`, {}, char);
  element.setAttribute("data-mark", mark(char));
  return element;
}

function mark(char) {
  const code = char.codePointAt(0);
  if (char === "\n") return "↵";
  if (char === "\t") return "→";
  if (char === " ") return "·";
  if (char === "\r") return "\\r";
  if (code < 0xa0) return `\\x${code.toString(16).padStart(2, "0")}`;
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

function spelled(piece) {
  return Array.from(piece, (char) => (char !== " " && (ALWAYS_MARKED.test(char) || INVISIBLE.test(char)) ? mark(char) : char)).join("");
}

// ── what a signal is on the page ────────────────────────────────────────────────────────────────────────────────────

// A channel is a signal as shown: its values (by token or by span), the value of full colour, and the level of a value.
function channel(strip, name) {
  const signal = strip.signals.get(name);
  if (!signal) return null;
  const { by, transform } = strip.state;
  const values = by === "token" ? signal.values : total(strip, signal, by);
  const own = by === "sum" || !signal.limit;
  const limit = own ? largest(values) : signal.limit;
  const level = (v) => {
    const part = Math.min(1, Math.abs(v) / limit);
    return transform === "log" ? Math.log1p(LOG_FROM * part) / Math.log1p(LOG_FROM) : part;
  };
  const beyond = (v) => Math.abs(v) > limit * (1 + 1e-6); // a float32 value meets a limit in float64
  return { signal, values, limit, own, level, beyond };
}

function largest(values) {
  let most = 0;
  for (const v of values) if (Number.isFinite(v) && Math.abs(v) > most) most = Math.abs(v);
  return most || 1;
}

function total(strip, signal, by) {
  const key = `${by} ${signal.name}`;
  if (!strip.totals.has(key)) {
    const values = new Float32Array(strip.n).fill(NaN);
    for (const span of strip.spans) values.fill(spanTotal(signal, span, by).value, span.start, span.end);
    strip.totals.set(key, values);
  }
  return strip.totals.get(key);
}

function spanTotal(signal, span, by) {
  let sum = 0;
  let count = 0;
  for (let i = span.start; i < span.end; i += 1) {
    if (Number.isNaN(signal.values[i])) continue;
    sum += signal.values[i];
    count += 1;
  }
  return { value: count === 0 ? NaN : by === "mean" ? sum / count : sum, count };
}

// ── painting: classes and two numbers a token, no node is made or removed ───────────────────────────────────────────

function paint(strip) {
  const fill = channel(strip, strip.state.signal);
  const line = channel(strip, strip.state.underline);
  const counts = { beyond: 0, missing: 0, lineBeyond: 0, lineMissing: 0 };
  for (let i = 0; i < strip.n; i += 1) paintToken(strip, i, fill, line, counts);
  syncControls(strip);
  legend(strip, fill, line, counts);
  if (strip.open) openTip(strip, strip.open.i, strip.open.pinned);
}

function paintToken(strip, i, fill, line, counts) {
  const active = (strip.state.mask === "all" || trained(strip, i)) && !(strip.state.by !== "token" && strip.spanOf[i] < 0);
  const [fillClass, level] = active && fill ? fillOf(fill, fill.values[i], counts) : ["", 0];
  const [lineClass, width] = active && line ? lineOf(line, line.values[i], counts) : ["", 0];
  const written = `${fillClass}|${level}|${lineClass}|${width}`;
  if (written === strip.written[i]) return;
  strip.written[i] = written;
  const token = strip.tokens[i];
  token.className = [tokenClass(strip, i), fillClass, lineClass].filter(Boolean).join(" ");
  token.style.cssText = (level ? `--level:${level};` : "") + (width ? `--width:${width}px` : "");
}

function fillOf(channel, v, counts) {
  if (Number.isNaN(v)) {
    counts.missing += 1;
    return ["ci-na", 0];
  }
  if (v === 0) return ["", 0];
  const over = channel.beyond(v);
  if (over) counts.beyond += 1;
  const way = channel.signal.diverging ? (v > 0 ? "ci-up" : "ci-down") : "ci-much";
  const level = Number(channel.level(v).toFixed(3));
  return level === 0 ? ["", 0] : [over ? `${way} ci-beyond` : way, level];
}

function lineOf(channel, v, counts) {
  if (Number.isNaN(v)) {
    counts.lineMissing += 1;
    return ["ci-line-na", 0];
  }
  const level = v === 0 ? 0 : channel.level(v);
  if (level < FAINT) return ["", 0];
  if (channel.beyond(v)) counts.lineBeyond += 1;
  return [v > 0 || !channel.signal.diverging ? "ci-line" : "ci-line-down", 1 + Math.round(3 * level)];
}

// ── numbers in words ────────────────────────────────────────────────────────────────────────────────────────────────

function number(v, signed) {
  if (v === null || v === undefined || Number.isNaN(v)) return "n/a";
  const size = Math.abs(v);
  const sign = v < 0 ? "−" : signed && v > 0 ? "+" : "";
  if (size === Infinity) return `${sign}∞`;
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-4) return sign + size.toExponential(2).replace("-", "−");
  if (size >= 1000) return sign + size.toFixed(0);
  return sign + size.toPrecision(3);
}

const rounded = (v, signed) => number(v, signed).replace(/(\.\d*?)0+$/u, "$1").replace(/\.$/u, "");
const withUnit = (text, unit) => (unit && text !== "n/a" ? `${text} ${unit}` : text);
const tokensOf = (n) => `${n} ${n === 1 ? "token" : "tokens"}`;
const wordsOf = (n) => `${n} ${n === 1 ? "word" : "words"}`;

// ── control bar ─────────────────────────────────────────────────────────────────────────────────────────────────────

function controls(strip) {
  const signals = [...strip.signals.values()];
  strip.switches = [];
  strip.bar.hidden = !signals.length;
  strip.bar.replaceChildren(
    group("Signal", ...signalChoice(strip, signals)),
    group("Underline", underlineChoice(strip, signals)),
    group("Transform", chip(strip, "transform", "linear", "p99", "linear, full colour at the 99th percentile"), chip(strip, "transform", "log", "log", "logarithmic, small values become visible")),
    group("Mask", chip(strip, "mask", "trained", "trained only", "colour only tokens in the loss"), chip(strip, "mask", "all", "all", "colour every token that has a value")),
  );
  if (strip.spans.length) strip.bar.append(group("By", ...byChoice(strip)));
}

function byChoice(strip) {
  return [
    chip(strip, "by", "token", "token", "each token's own value"),
    chip(strip, "by", "sum", "span sum", "the sum over the tokens of a span"),
    chip(strip, "by", "mean", "span mean", "the mean over the tokens of a span"),
  ];
}

function group(label, ...children) {
  const element = tag("div", "ci-group", { role: "group", "aria-label": label });
  element.append(tag("span", "ci-cap", { "aria-hidden": "true" }, label), ...children);
  return element;
}

function choose(strip, key, value) {
  strip.state[key] = value;
  paint(strip);
}

function chip(strip, key, value, label, doc) {
  const button = tag("button", "ci-chip", { type: "button", title: doc }, label);
  button.addEventListener("click", () => choose(strip, key, value));
  strip.switches.push(() => button.setAttribute("aria-pressed", String(strip.state[key] === value)));
  return button;
}

function signalChoice(strip, signals) {
  if (signals.length <= CHIPS + 1) return signals.map((s) => chip(strip, "signal", s.name, s.label, s.doc));
  const shown = atHand(strip, signals);
  const rest = signals.filter((s) => !shown.includes(s));
  const list = tag("select", "ci-chip ci-list", { "aria-label": "more signals" });
  list.append(new Option(`+${rest.length} more`, ""), ...families(rest));
  list.addEventListener("change", () => choose(strip, "signal", list.value || shown[0].name));
  strip.switches.push(() => {
    const here = rest.some((s) => s.name === strip.state.signal);
    list.value = here ? strip.state.signal : "";
    list.classList.toggle("ci-on", here);
  });
  return [...shown.map((s) => chip(strip, "signal", s.name, s.label, s.doc)), list];
}

// The two shown first, then one of each family in turn: what answers different questions stands side by side.
function atHand(strip, signals) {
  const { fill, underline } = strip.payload;
  const first = [fill, underline].map((name) => strip.signals.get(name)).filter(Boolean);
  const rank = (s) => signals.filter((other) => other.family === s.family).indexOf(s);
  const inTurn = [...signals].sort((a, b) => rank(a) - rank(b));
  return [...new Set([...first, ...inTurn])].slice(0, CHIPS);
}

function underlineChoice(strip, signals) {
  const list = tag("select", "ci-chip ci-list", { "aria-label": "underline" });
  list.append(new Option("none", ""), ...families(signals));
  list.addEventListener("change", () => choose(strip, "underline", list.value));
  strip.switches.push(() => {
    list.value = strip.state.underline;
    list.classList.toggle("ci-on", strip.state.underline !== "");
  });
  return list;
}

function families(signals) {
  return [...new Set(signals.map((s) => s.family))].map((family) => {
    const part = tag("optgroup", "", { label: family });
    part.append(...signals.filter((s) => s.family === family).map((s) => new Option(s.label, s.name)));
    return part;
  });
}

function syncControls(strip) {
  for (const sync of strip.switches) sync();
}

// ── legend ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function legend(strip, fill, line, counts) {
  strip.legend.replaceChildren();
  if (fill) strip.legend.append(fillLegend(strip, fill, counts));
  else strip.legend.append(tag("span", "ci-item", {}, "no signal"));
  if (line) strip.legend.append(lineLegend(line, counts));
  strip.legend.append(keys(strip));
}

function fillLegend(strip, fill, counts) {
  const { signal, limit, own } = fill;
  const box = tag("div", "ci-scale");
  const ends = scaleEnds(fill);
  box.append(
    tag("b", "", {}, signal.label + (signal.unit ? `, ${signal.unit}` : "")),
    tag("span", "ci-limit", {}, ends[0]),
    tag("span", `ci-ramp ${signal.diverging ? "ci-both" : "ci-one"}`, { role: "img", "aria-label": `colour scale from ${ends[0]} to ${ends[1]}` }),
    tag("span", "ci-limit", {}, ends[1]),
  );
  if (signal.sign) box.append(tag("span", "", {}, signal.sign));
  if (strip.state.transform === "log") box.append(tag("span", "", {}, `half colour at ${rounded(limit * (Math.sqrt(1 + LOG_FROM) - 1) / LOG_FROM)}`));
  if (own) box.append(tag("span", "", {}, strip.state.by === "sum" ? "scale: largest span here" : "scale: this response"));
  if (counts.beyond) box.append(sample("ci-beyond " + (signal.diverging ? "ci-up" : "ci-much"), `${counts.beyond} beyond the limit`));
  if (counts.missing) box.append(sample("ci-na", `${counts.missing} n/a`));
  return box;
}

function scaleEnds({ signal, values, limit }) {
  if (signal.diverging) return [rounded(-limit), rounded(limit, true)];
  const negative = values.some((v) => v < 0) && !values.some((v) => v > 0);
  return ["0", rounded(negative ? -limit : limit)];
}

function lineLegend(line, counts) {
  const box = tag("div", "ci-scale");
  const { signal } = line;
  const [low, high] = scaleEnds(line);
  box.append(tag("b", "", {}, `underline: ${signal.label}`), sample("ci-line ci-thick", signal.diverging ? `up to ${high}` : `0 to ${high}`));
  if (signal.diverging) box.append(sample("ci-line-down ci-thick", `down to ${low}`));
  if (counts.lineBeyond) box.append(tag("span", "", {}, `${counts.lineBeyond} beyond`));
  if (counts.lineMissing) box.append(sample("ci-line-na", `${counts.lineMissing} n/a`));
  return box;
}

function sample(className, words) {
  const box = tag("span", "ci-item");
  box.append(tag("span", `ci-t ci-sample ${className}`, { "aria-hidden": "true" }), tag("span", "", {}, words));
  return box;
}

function keys(strip) {
  const box = tag("div", "ci-keys");
  const find = tag("button", "ci-plain", { type: "button" }, "/ find");
  const help = tag("button", "ci-plain", { type: "button" }, "? help");
  find.addEventListener("click", () => openFinder(strip));
  help.addEventListener("click", () => toggleHelp(strip));
  box.append(tag("span", "", {}, "← → token"), find, help);
  return box;
}

function helpPanel() {
  const panel = tag("dl", "ci-help", { hidden: "" });
  const lines = [
    ["← →", "token before, token after; Home and End go to the ends"],
    ["Enter, click", "pin the figures of a token; Esc lets go"],
    ["/", "find in the text; Enter or n next, Shift+Enter or p previous"],
    ["fill", "the chosen signal; no colour is exactly zero, hatched is no value"],
    ["underline", "the second signal; solid is plus, dashed is minus, dotted is no value; what is near zero has none"],
    ["↵ · → ⋯ ∅", "line break, space, tab, rest of a character, token without text; marks are not copied"],
  ];
  for (const [key, words] of lines) panel.append(tag("dt", "", {}, key), tag("dd", "", {}, words));
  return panel;
}

function toggleHelp(strip, show = strip.help.hidden) {
  strip.help.hidden = !show;
}

// ── figures of one token ────────────────────────────────────────────────────────────────────────────────────────────

function openTip(strip, i, pinned) {
  strip.open = { i, pinned };
  strip.tip.classList.toggle("ci-pinned", pinned);
  strip.tip.replaceChildren(tipHead(strip, i), tipTable(strip, i), ...tipSpan(strip, i));
  if (strip.tip.showPopover && !strip.tip.matches(":popover-open")) strip.tip.showPopover();
  strip.tip.classList.add("ci-open");
  place(strip);
}

function closeTip(strip) {
  strip.open = null;
  strip.tip.classList.remove("ci-open");
  if (strip.tip.hidePopover && strip.tip.matches(":popover-open")) strip.tip.hidePopover();
}

const KIND_WORDS = { prompt: "prompt, not trained", response: "trained", masked: "not trained", end: "end of the sequence, trained" };

function tipHead(strip, i) {
  const head = tag("div", "ci-tip-head");
  const first = strip.clusters[i];
  head.append(tag("b", "ci-tip-text", {}, strip.pieces[first] === "" ? "no text" : `“${spelled(strip.pieces[first])}”`));
  head.append(tag("span", "", {}, `#${i}`));
  if (strip.tokenIds[i] >= 0) head.append(tag("span", "", {}, `id ${strip.tokenIds[i]}`));
  let last = first;
  while (last + 1 < strip.n && strip.clusters[last + 1] === first) last += 1;
  if (last > first) head.append(tag("span", "", {}, `part ${i - first + 1} of ${last - first + 1} of this character`));
  head.append(tag("span", trained(strip, i) ? "" : "ci-warn", {}, KIND_WORDS[strip.kinds[i]]));
  return head;
}

function tipTable(strip, i) {
  const table = tag("table");
  const body = tag("tbody");
  let family = "";
  for (const signal of strip.signals.values()) {
    if (signal.family !== family) body.append(familyRow((family = signal.family)));
    body.append(signalRow(strip, signal, i));
  }
  table.append(body);
  return table;
}

function familyRow(family) {
  const row = tag("tr", "ci-family");
  row.append(tag("th", "", { colspan: 4, scope: "rowgroup" }, family));
  return row;
}

function signalRow(strip, signal, i) {
  const row = tag("tr");
  row.classList.toggle("ci-now", signal.name === strip.state.signal);
  row.classList.toggle("ci-under", signal.name === strip.state.underline);
  row.setAttribute("data-signal", signal.name);
  const missing = Number.isNaN(signal.values[i]);
  row.append(
    tag("th", "", { scope: "row" }, signal.label),
    tag("td", missing ? "ci-num ci-missing" : "ci-num", {}, number(signal.values[i], signal.diverging)),
    tag("td", "ci-unit", {}, missing ? "" : signal.unit),
    tag("td", "ci-from", {}, signal.provenance),
  );
  return row;
}

function tipSpan(strip, i) {
  const span = strip.spans[strip.spanOf[i]];
  if (!span) return [];
  const box = tag("div", "ci-tip-span");
  box.append(tag("b", "", {}, span.label), tag("span", "", {}, [span.detail, `tokens ${span.start} to ${span.end - 1}`].filter(Boolean).join(" · ")));
  const signal = strip.signals.get(strip.state.signal);
  if (signal) box.append(tag("span", "", {}, totals(signal, span)));
  return [box];
}

function totals(signal, span) {
  const { value: sum, count } = spanTotal(signal, span, "sum");
  const mean = spanTotal(signal, span, "mean").value;
  const say = (v) => withUnit(number(v, signal.diverging), signal.unit);
  return `${signal.label}: sum ${say(sum)}, mean ${say(mean)} over ${count} of ${tokensOf(span.end - span.start)}`;
}

// Under the token, above it where there is no room, and never outside the window.
function place(strip) {
  const at = strip.tokens[strip.open.i].getClientRects()[0];
  if (!at) return;
  const { offsetWidth: width, offsetHeight: height } = strip.tip;
  const gap = 8;
  const right = document.documentElement.clientWidth - width - gap;
  const below = at.bottom + gap;
  const fits = below + height + gap <= window.innerHeight || at.top - gap - height < gap;
  const top = Math.min(fits ? below : at.top - gap - height, window.innerHeight - height - gap);
  strip.tip.style.left = `${Math.max(gap, Math.min(at.left, right))}px`;
  strip.tip.style.top = `${Math.max(gap, top)}px`;
}

// ── moving about ────────────────────────────────────────────────────────────────────────────────────────────────────

function goTo(strip, i, until) {
  for (const token of strip.marked) token.removeAttribute("data-marked");
  strip.marked = strip.tokens.slice(i, Math.max(i + 1, until ?? 0));
  for (const token of strip.marked) token.setAttribute("data-marked", "");
  reveal(strip, i, "center");
}

function reveal(strip, i, block) {
  if (strip.kinds[i] === "prompt" && strip.folded) fold(strip, false);
  strip.tokens[i].scrollIntoView({ block, inline: "nearest" });
}

function moveTo(strip, i, { block = "nearest" } = {}) {
  if (i < 0 || i >= strip.n) return;
  leaveCursor(strip);
  strip.cursor = i;
  reveal(strip, i, block);
  strip.tokens[i].setAttribute("data-cursor", "");
  strip.text.classList.add("ci-moving");
  openTip(strip, i, true);
  strip.status.textContent = spoken(strip, i);
}

function leaveCursor(strip) {
  if (strip.cursor === undefined) return;
  strip.tokens[strip.cursor].removeAttribute("data-cursor");
  strip.text.classList.remove("ci-moving");
}

function spoken(strip, i) {
  const signal = strip.signals.get(strip.state.signal);
  const value = signal ? `${signal.label} ${withUnit(number(signal.values[i], signal.diverging), signal.unit)}` : "";
  const span = strip.spans[strip.spanOf[i]];
  return [`token ${i}`, spelled(strip.pieces[strip.clusters[i]]) || "no text", KIND_WORDS[strip.kinds[i]], value, span?.label].filter(Boolean).join(", ");
}

function letGo(strip) {
  leaveCursor(strip);
  closeTip(strip);
}

function listen(strip) {
  const { box, text, stop } = strip;
  const on = (target, name, act, options = {}) => target.addEventListener(name, act, { signal: stop.signal, ...options });
  on(text, "pointerover", (event) => hover(strip, event));
  on(text, "pointerleave", () => strip.open && !strip.open.pinned && closeTip(strip));
  on(text, "click", (event) => clicked(strip, event));
  on(text, "copy", (event) => copy(strip, event));
  on(box, "keydown", (event) => pressed(strip, event));
  on(window, "scroll", (event) => scrolled(strip, event), { capture: true, passive: true });
  on(window, "resize", () => strip.open && place(strip));
}

function tokenAt(event) {
  const element = event.target.closest?.(".ci-t, .ci-seg");
  if (!element) return -1;
  return element.__i ?? element.querySelector(".ci-t").__i;
}

function hover(strip, event) {
  if (strip.open?.pinned) return;
  const i = tokenAt(event);
  if (i >= 0) openTip(strip, i, false);
  else if (strip.open) closeTip(strip);
}

function clicked(strip, event) {
  const i = tokenAt(event);
  if (i < 0) return;
  if (strip.open?.pinned && strip.open.i === i) return letGo(strip);
  moveTo(strip, i);
  strip.onSelect(i);
}

function scrolled(strip, event) {
  if (!strip.box.isConnected) return strip.stop.abort();
  if (!strip.open || event.target === strip.tip) return;
  if (strip.open.pinned) place(strip);
  else closeTip(strip);
}

function pressed(strip, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return escape(strip, event);
  if (event.target.closest("input, select")) return;
  const here = strip.cursor ?? firstOfResponse(strip) - 1;
  const act = {
    ArrowLeft: () => moveTo(strip, Math.max(0, here - 1)),
    ArrowRight: () => moveTo(strip, Math.min(strip.n - 1, here + 1)),
    Home: () => moveTo(strip, firstOfResponse(strip)),
    End: () => moveTo(strip, strip.n - 1),
    Enter: () => strip.cursor !== undefined && event.target === strip.text && (moveTo(strip, strip.cursor), strip.onSelect(strip.cursor)),
    "/": () => openFinder(strip),
    "?": () => toggleHelp(strip),
    n: () => nextHit(strip, 1),
    p: () => nextHit(strip, -1),
  }[event.key];
  if (!act) return;
  if (event.key === "Enter" && event.target !== strip.text) return;
  event.preventDefault();
  event.stopPropagation();
  act();
}

function escape(strip, event) {
  event.stopPropagation();
  toggleHelp(strip, false);
  letGo(strip);
  closeFinder(strip);
}

function firstOfResponse(strip) {
  const at = strip.kinds.findIndex((kind) => kind !== "prompt");
  return at < 0 ? 0 : at;
}

// The text of the tokens and nothing else: no line ends of blocks, no folded prompt.
function copy(strip, event) {
  const scope = strip.box.getRootNode();
  const selection = scope.getSelection ? scope.getSelection() : document.getSelection();
  if (!selection || !selection.rangeCount || selection.isCollapsed) return;
  const part = selection.getRangeAt(0).cloneContents();
  for (const other of part.querySelectorAll("[hidden], .ci-fold")) other.remove();
  event.clipboardData.setData("text/plain", part.textContent);
  event.preventDefault();
}

// ── find ────────────────────────────────────────────────────────────────────────────────────────────────────────────

function finder(strip) {
  const row = tag("div", "ci-find", { hidden: "", role: "search" });
  const input = tag("input", "", { type: "search", placeholder: "find in the text", "aria-label": "find in the text", spellcheck: "false" });
  const count = tag("span", "ci-count", { role: "status" });
  input.addEventListener("input", () => search(strip, input.value));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    nextHit(strip, event.shiftKey ? -1 : 1);
  });
  row.append(input, count);
  return { row, input, count };
}

function openFinder(strip) {
  strip.finder.row.hidden = false;
  strip.finder.input.focus();
  strip.finder.input.select();
}

function closeFinder(strip) {
  if (strip.finder.row.hidden) return;
  strip.finder.row.hidden = true;
  strip.finder.input.value = "";
  search(strip, "");
  strip.text.focus({ preventScroll: true });
}

function search(strip, words) {
  for (const hit of strip.hits) for (const i of hit) strip.tokens[i].removeAttribute("data-hit");
  strip.hits = words ? found(strip, words) : [];
  for (const hit of strip.hits) for (const i of hit) strip.tokens[i].setAttribute("data-hit", "");
  strip.hit = -1;
  strip.finder.count.textContent = words ? (strip.hits.length ? `${strip.hits.length} found` : "not in the text") : "";
}

function found(strip, words) {
  const pattern = new RegExp(words.replace(/[\\^$.*+?()[\]{}|/]/gu, "\\$&"), "giu");
  const starts = [];
  let length = 0;
  for (const piece of strip.pieces) {
    starts.push(length);
    length += piece.length;
  }
  const hits = [];
  let i = 0;
  for (const match of strip.pieces.join("").matchAll(pattern)) {
    const end = match.index + match[0].length;
    while (i + 1 < strip.n && starts[i + 1] <= match.index) i += 1;
    const hit = [];
    for (let k = i; k < strip.n && starts[k] < end; k += 1) hit.push(k);
    hits.push(hit);
  }
  return hits;
}

function nextHit(strip, way) {
  const total = strip.hits.length;
  if (!total) return;
  strip.hit = strip.hit < 0 ? (way > 0 ? 0 : total - 1) : (strip.hit + way + total) % total;
  strip.finder.count.textContent = `${strip.hit + 1} of ${total}`;
  moveTo(strip, strip.hits[strip.hit][0], { block: "center" });
}

// ── labels of spans: as much as there is room for ───────────────────────────────────────────────────────────────────

function watch(strip) {
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) strip.shown.add(target);
        else strip.shown.delete(target);
        if (isIntersecting) fitLabels(target);
      }
    },
    { rootMargin: "300px" },
  );
  const sized = new ResizeObserver(() => strip.shown.forEach(fitLabels));
  for (const block of strip.text.querySelectorAll(".ci-labelled")) seen.observe(block);
  sized.observe(strip.text);
  strip.stop.signal.addEventListener("abort", () => {
    seen.disconnect();
    sized.disconnect();
  });
}

function fitLabels(block) {
  const edge = block.getBoundingClientRect().right;
  const style = getComputedStyle(block.__segments[0], "::before");
  const font = `${style.fontSize} ${style.fontFamily}`; // the shorthand is empty with tabular figures
  const places = block.__segments.map((segment) => ({ segment, ...labelPlace(segment, edge) }));
  places.forEach(({ segment, left, top, dx, dy }, k) => {
    const next = places[k + 1];
    const sameLine = next && Math.abs(next.top - top) < 6;
    const room = Math.max(0, Math.floor((sameLine ? next.left - 8 : edge) - left));
    const words = segment.__words;
    segment.setAttribute("data-label", fitting(words, room, font));
    segment.style.cssText = `--room:${room}px;--dx:${dx}px;--dy:${dy}px`;
    segment.classList.toggle("ci-tight", room < 40 && textWidth(words[0], font) > room);
  });
}

// As many whole parts as fit: half a number would be a wrong one. The first part alone may be cut by the style sheet.
function fitting(words, room, font) {
  for (let parts = words.length; parts > 1; parts -= 1) {
    const text = words.slice(0, parts).join(" · ");
    if (textWidth(text, font) <= room) return text;
  }
  return words[0];
}

const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text, font) {
  ruler.font = font;
  return Math.ceil(ruler.measureText(text).width) + 1;
}

// A label goes over the second line of its span where the first one starts too near the edge.
function labelPlace(segment, edge) {
  const lines = segment.getClientRects();
  const first = lines[0];
  const second = lines[1];
  if (second && edge - first.left < 160 && second.left < first.left) {
    return { left: second.left, top: second.top, dx: second.left - first.left, dy: second.top - first.top };
  }
  return { left: first?.left ?? 0, top: first?.top ?? 0, dx: 0, dy: 0 };
}
