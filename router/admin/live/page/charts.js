'use strict';
// The charts of the live page: `samples` of live.js over time.

const SPANS_S = [60, 120, 300];  // possible time ranges; the shortest that holds the samples is shown
const BREAK_MS = 2500;           // a pause without steps breaks a line

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = '12px system-ui, sans-serif';
  const box = {g, left: 56, right: width - 10, top: 8, bottom: height - 22, span: span()};
  box.shown = samples.map((sample) => ({sample, x: xOf(box, sample)})).filter((point) => point.x >= box.left);
  return box;
}

// Round numbers that divide 0..max into about four.
function ticks(max) {
  const raw = max / 4, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const result = [];
  for (let value = 0; value <= max * 1.0001; value += step) result.push(value);
  return result;
}

// The charts' time range in seconds, and the position of a sample.
function span() {
  const seconds = samples.length ? (samples[samples.length - 1].t - samples[0].t) / 1000 : 0;
  return SPANS_S.find((s) => s >= seconds) || SPANS_S[SPANS_S.length - 1];
}
function xOf(box, sample) {
  return box.right - (box.right - box.left) * (samples[samples.length - 1].t - sample.t) / 1000 / box.span;
}

function axes(box, max, label) {
  const {g, left, right, top, bottom} = box;
  g.lineWidth = 1;
  g.strokeStyle = colour('--line');
  g.fillStyle = colour('--soft');
  g.textAlign = 'right';
  g.textBaseline = 'middle';
  for (const value of ticks(max)) {
    const y = bottom - (bottom - top) * value / max;
    g.beginPath();
    g.moveTo(left, y);
    g.lineTo(right, y);
    g.stroke();
    g.fillText(label(value), left - 6, y);
  }
  g.textAlign = 'center';
  g.textBaseline = 'top';
  const step = box.span <= 120 ? 20 : 60;
  for (let s = 0; s < box.span; s += step) {
    const text = s % 60 ? '−' + s + ' s' : '−' + s / 60 + ' min';
    g.fillText(s ? text : 'now', right - (right - left) * s / box.span - (s ? 0 : 12), bottom + 6);
  }
}

const connected = (before, sample) => before.epoch === sample.epoch && sample.t - before.t < BREAK_MS;

// Draws `get` over the samples; the line breaks where the epoch changed or no step ended.
function line(box, max, get, style, width, alpha = 1) {
  const {g, top, bottom, shown} = box;
  g.beginPath();
  let before = null;
  for (const point of shown) {
    const value = get(point.sample);
    if (value === undefined) {
      before = null;
      continue;
    }
    const y = bottom - (bottom - top) * value / max;
    if (before && connected(before, point.sample)) g.lineTo(point.x, y);
    else g.moveTo(point.x, y);
    before = point.sample;
  }
  g.globalAlpha = alpha;
  g.strokeStyle = style;
  g.lineWidth = width;
  g.lineJoin = 'round';
  g.stroke();
  g.globalAlpha = 1;
}

const maxOf = (sample) => sample.max === undefined ? (sample.max = Math.max(...sample.load)) : sample.max;
const prefillOf = (sample) => Math.round(sample.prefill.reduce((a, b) => a + b, 0) / Math.max(1, sample.steps));
const meanOf = (sample) => sample.mean === undefined ?
    (sample.mean = sample.load.reduce((a, b) => a + b, 0) / sample.load.length) : sample.mean;

// The sample closest to an x, if it is close.
function nearest(box, x) {
  const best = box.shown.reduce((a, p) => !a || Math.abs(p.x - x) < Math.abs(a.x - x) ? p : a, null);
  return best && Math.abs(best.x - x) < 20 ? best : null;
}

function drawLoad() {
  const box = prepare(byId('load'));
  const top = Math.max(1, ...samples.map(maxOf)) * 1.05;
  axes(box, top, (v) => short.format(v));
  const {g, left, right, bottom, shown} = box;
  const y = (v) => bottom - (bottom - box.top) * v / top;
  g.fillStyle = colour('--gap');
  for (let from = 0; from < shown.length;) {
    let to = from + 1;
    while (to < shown.length && connected(shown[to - 1].sample, shown[to].sample)) ++to;
    const run = shown.slice(from, to);
    g.beginPath();
    for (const p of run) g.lineTo(p.x, y(maxOf(p.sample)));
    for (const p of run.reverse()) g.lineTo(p.x, y(meanOf(p.sample)));
    g.fill();
    from = to;
  }
  const ranks = Math.max(0, ...samples.map((s) => s.load.length));
  const alpha = Math.max(0.12, Math.min(0.75, 6 / ranks));
  const each = colour('--each');
  for (let rank = 0; rank < ranks; ++rank) line(box, top, (s) => s.load[rank], each, 1, alpha);
  line(box, top, meanOf, colour('--mean'), 2.5);
  line(box, top, maxOf, colour('--max'), 2.5);
  const tip = byId('tip');
  const at = hover === null ? null : nearest(box, hover);
  if (at) {
    const s = at.sample;
    g.strokeStyle = colour('--soft');
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(at.x, box.top);
    g.lineTo(at.x, bottom);
    g.stroke();
    tip.hidden = false;
    set(tip, new Date(s.t).toLocaleTimeString() + '  step ' + s.step + '\nlargest ' + plain.format(maxOf(s)) + ' (rank ' +
        s.load.indexOf(maxOf(s)) + ')\nmean ' + plain.format(meanOf(s)) + '\nidle ' + percent(s.idle) + '\nprompt tokens per step ' +
        plain.format(prefillOf(s)) + '\nslowest rank ' + (s.straggler ?? '–') + '\nwaiting ' + s.waiting);
    // On the side of the pointer where it fits.
    tip.style.left = (at.x + 8 + tip.offsetWidth < right ? at.x + 8 : at.x - 8 - tip.offsetWidth) + 'px';
  } else {
    tip.hidden = true;
  }
}

function drawIdle() {
  const box = prepare(byId('idle'));
  const top = Math.min(1, Math.max(0.05, ...samples.map((s) => Math.max(s.idle, s.wait))) * 1.1);
  axes(box, top, (v) => Math.round(1000 * v) / 10 + ' %');
  line(box, top, (s) => s.wait, colour('--mean'), 1.5);
  line(box, top, (s) => s.idle, colour('--max'), 2);
}

function draw() {
  if (dirty && !paused && !document.hidden) {
    dirty = false;
    drawLoad();
    drawIdle();
  }
  requestAnimationFrame(draw);
}
