'use strict';
// The live page: samples come as server-sent events, the cluster's state is asked for every two seconds.

const KEEP = 600;              // samples drawn: five minutes
const STATE_EVERY_MS = 2000;
const WINDOW_MS = 60000;       // latencies and rates are of the last minute
const byId = (id) => document.getElementById(id);

let samples = [];              // oldest first
let states = [];               // [{t, state}], for differences over the last minute
let paused = false;
let hover = null;              // index into samples
let dirty = true;
let token = sessionStorage.getItem('bfio-token') || '';

// ---- talking to the router ----

function headers(more) {
  return Object.assign(token ? {Authorization: 'Bearer ' + token} : {}, more);
}

async function request(path, options = {}) {
  for (;;) {
    const reply = await fetch(path, Object.assign({cache: 'no-store'}, options, {headers: headers(options.headers)}));
    if (reply.status !== 401) return reply;
    const given = window.prompt('This router asks for an admin token:', '');
    if (!given) return reply;
    token = given.trim();
    sessionStorage.setItem('bfio-token', token);
  }
}

function say(text) {
  byId('message').textContent = text || '';
  byId('message').hidden = !text;
}

function health(text, kind) {
  const chip = byId('health');
  if (chip.textContent !== text) chip.textContent = text;
  chip.className = 'chip ' + kind;
}

// Reads the event stream by fetch, for EventSource cannot send a token. Comes back after a second when it breaks.
async function follow() {
  for (;;) {
    try {
      const last = samples.length ? samples[samples.length - 1].n : 0;
      const reply = await request('api/events?after=' + last);
      if (!reply.ok) throw new Error((await reply.text()).trim());
      const reader = reply.body.getReader();
      const decoder = new TextDecoder();
      let text = '';
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        text += decoder.decode(value, {stream: true});
        const events = text.split('\n\n');
        text = events.pop();
        for (const event of events) {
          const line = event.split('\n').find((l) => l.startsWith('data: '));
          if (line) add(JSON.parse(line.slice(6)));
        }
      }
    } catch (error) {
      health('not connected', 'bad');
      say('No figures: ' + error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function add(batch) {
  for (const sample of batch) {
    // Numbers begin anew when the router does.
    if (samples.length && sample.n <= samples[samples.length - 1].n) samples = [];
    samples.push(sample);
  }
  if (samples.length > KEEP) samples = samples.slice(-KEEP);
  dirty = true;
}

async function pollState() {
  try {
    const reply = await request('api/state');
    if (!reply.ok) throw new Error((await reply.text()).trim());
    const state = await reply.json();
    states.push({t: Date.now(), state});
    while (states.length > 2 && states[1].t < Date.now() - WINDOW_MS) states.shift();
    say('');
    showState();
  } catch (error) {
    health('not connected', 'bad');
    say('No figures: ' + error.message);
  }
  setTimeout(pollState, STATE_EVERY_MS);
}

// ---- figures ----

const number = (value) => Number(value || 0);  // 64-bit numbers come as strings
const short = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 3});
const plain = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const percent = (share) => (100 * share).toFixed(share < 0.1 ? 2 : 1) + ' %';

function seconds(s) {
  if (!isFinite(s)) return '–';
  if (s < 0.0995) return (1000 * s).toPrecision(3) + ' ms';
  if (s < 120) return s.toPrecision(3) + ' s';
  const minutes = Math.round(s / 60);
  if (minutes < 120) return minutes + ' min';
  const hours = Math.round(s / 3600);
  return hours < 48 ? hours + ' h' : Math.round(hours / 24) + ' d';
}

// now - a minute ago, of one counter or distribution.
function difference(get) {
  const last = states[states.length - 1], first = states[0];
  return {value: number(get(last.state)) - number(get(first.state)), seconds: (last.t - first.t) / 1000};
}

function distribution(get) {
  const now = get(states[states.length - 1].state), before = get(states[0].state);
  if (!now || !now.counts) return null;
  const old = states.length > 1 && before && before.counts ? before : null;
  const counts = now.counts.map((count, i) => number(count) - (old ? number(old.counts[i]) : 0));
  const count = counts.reduce((a, b) => a + b, 0);
  const sum = number(now.sum) - (old ? number(old.sum) : 0);
  return {bounds: now.upperBounds.map(number), counts, count, mean: count ? sum / count : NaN};
}

function quantile(d, q) {
  if (!d || !d.count) return NaN;
  let before = 0;
  for (let i = 0; i < d.bounds.length; ++i) {
    if (d.counts[i] && before + d.counts[i] >= q * d.count) {
      const low = i ? d.bounds[i - 1] : 0;
      return low + (d.bounds[i] - low) * (q * d.count - before) / d.counts[i];
    }
    before += d.counts[i];
  }
  return d.bounds[d.bounds.length - 1];
}

// ---- text ----

// Elements are kept and only their text is changed, so that focus and selection stay.
function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function rows(body, keys, make, fill) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  keys.forEach((key, i) => {
    let row = known.get(key);
    if (!row) {
      row = make(key);
      row.dataset.key = key;
    }
    known.delete(key);
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] || null);
    fill(row, i);
  });
  for (const row of known.values()) row.remove();
}

function cells(row, texts) {
  while (row.children.length < texts.length) row.append(document.createElement('td'));
  texts.forEach((text, i) => set(row.children[i], text));
}

function showTiles(state) {
  const recent = samples.slice(-120);
  const mean = (get) => recent.length ? recent.reduce((a, s) => a + get(s), 0) / recent.length : NaN;
  const ttft = distribution((s) => s.latencies && s.latencies.timeToFirstTokenS);
  const tpot = distribution((s) => s.latencies && s.latencies.interTokenS);
  const tokens = difference((s) => s.steps && s.steps.generatedTokens);
  const steps = difference((s) => s.steps && s.steps.steps);
  const running = (state.workers || []).reduce((a, w) => a + number(w.activeRequests), 0);
  const per = (d) => d.seconds > 0 ? d.value / d.seconds : NaN;
  const tiles = [
    ['idle', 'idle share, last minute', isNaN(mean((s) => s.idle)) ? '–' : percent(mean((s) => s.idle))],
    ['tokens', 'tokens a second', isNaN(per(tokens)) ? '–' : short.format(per(tokens))],
    ['steps', 'steps a second', isNaN(per(steps)) ? '–' : per(steps).toFixed(1)],
    ['ttft', 'first token, p50 / p99', seconds(quantile(ttft, 0.5)) + ' / ' + seconds(quantile(ttft, 0.99))],
    ['tpot', 'between tokens, p50 / p99', seconds(quantile(tpot, 0.5)) + ' / ' + seconds(quantile(tpot, 0.99))],
    ['running', 'running', plain.format(running)],
    ['waiting', 'waiting of ' + plain.format(number(state.maxWaitingRequests)), plain.format(number(state.waitingRequests))],
  ];
  rows(byId('tiles'), tiles.map((t) => t[0]), () => {
    const tile = document.createElement('div');
    tile.className = 'tile';
    tile.append(document.createElement('b'), document.createElement('span'));
    return tile;
  }, (tile, i) => {
    set(tile.children[0], tiles[i][2]);
    set(tile.children[1], tiles[i][1]);
  });
}

function showWorkers(state) {
  const workers = state.workers || [];
  const most = Math.max(1, ...workers.map((w) => number(w.loadTokens)));
  const steps = workers.reduce((a, w) => a + number(w.stragglerSteps), 0);
  const phases = {WORKER_PHASE_JOINING: 'joining', WORKER_PHASE_SERVING: 'serving', WORKER_PHASE_DRAINING: 'draining'};
  rows(document.querySelector('#workers tbody'), workers.map((w) => w.workerId), (id) => {
    const row = document.createElement('tr');
    for (let i = 0; i < 8; ++i) row.append(document.createElement('td'));
    const bar = document.createElement('div');
    bar.className = 'bar';
    const track = document.createElement('div');
    track.append(document.createElement('i'));
    bar.append(track, document.createElement('span'));
    row.children[3].append(bar);
    const drain = document.createElement('button');
    drain.type = 'button';
    drain.textContent = 'Drain';
    drain.setAttribute('aria-label', 'Drain ' + id);
    drain.addEventListener('click', () => askDrain(id));
    row.children[7].append(drain);
    return row;
  }, (row, i) => {
    const w = workers[i], load = number(w.loadTokens), share = load / most;
    const at = (n) => row.children[n];
    set(at(0), w.rank === undefined ? '–' : String(w.rank));
    set(at(1), w.workerId + (w.engine ? ' (' + w.engine + ')' : ''));
    set(at(2), phases[w.phase] || '–');
    const fill = at(3).querySelector('i');
    fill.style.width = (100 * share).toFixed(1) + '%';
    fill.className = load === most && load > 0 ? 'most' : '';
    set(at(3).querySelector('span'), plain.format(load));
    set(at(4), plain.format(number(w.activeRequests)) + ' / ' + plain.format(number(w.slots)));
    set(at(5), number(w.kvTokens) ? percent(load / number(w.kvTokens)) : '–');
    set(at(6), steps ? percent(number(w.stragglerSteps) / steps) : '–');
    at(7).querySelector('button').disabled = w.phase === 'WORKER_PHASE_DRAINING';
  });
}

function showLatency() {
  const kinds = [
    ['waiting for a worker', 'queueTimeS'], ['first token', 'timeToFirstTokenS'], ['between tokens', 'interTokenS'],
    ['per output token', 'timePerOutputTokenS'], ['whole request', 'endToEndS'],
  ];
  rows(document.querySelector('#latency tbody'), kinds.map((k) => k[1]), () => document.createElement('tr'), (row, i) => {
    const d = distribution((s) => s.latencies && s.latencies[kinds[i][1]]);
    const of = (q) => seconds(quantile(d, q));
    cells(row, [kinds[i][0], plain.format(d ? d.count : 0), seconds(d ? d.mean : NaN), of(0.5), of(0.9), of(0.99)]);
  });
}

function showRequests(state) {
  const r = state.requests || {};
  const counts = [
    ['accepted', r.accepted], ['completed', r.completed], ['cancelled', number(r.cancelled) + number(r.aborted)],
    ['failed', r.failed, true], ['replayed', r.replayed], ['resumed', r.resumed],
    ['refused', number(r.refusedPoolFull) + number(r.refusedInvalid) + number(r.refusedTenant) + number(r.refusedMemory)],
    ['tokens lost', r.tokensLost, true], ['tokens twice', r.tokensDuplicated, true],
  ];
  rows(byId('requests'), counts.map((c) => c[0]), (key) => {
    const pair = document.createElement('div');
    pair.append(document.createElement('dt'), document.createElement('dd'));
    pair.children[0].textContent = key;
    return pair;
  }, (pair, i) => {
    set(pair.children[1], plain.format(number(counts[i][1])));
    pair.className = counts[i][2] && number(counts[i][1]) ? 'bad' : '';
  });
}

function showShadows(state) {
  const shadows = state.shadows || [];
  byId('shadow-section').hidden = !shadows.length;
  rows(document.querySelector('#shadows tbody'), shadows.map((s) => s.policy), () => document.createElement('tr'),
       (row, i) => {
         const s = shadows[i];
         cells(row, [s.policy, plain.format(number(s.decisions)), short.format(number(s.avoidedIdleTokens)),
                     short.format(number(s.missedIdleTokens))]);
       });
}

function showState() {
  if (paused) return;
  const state = states[states.length - 1].state;
  const ranks = (state.workers || []).filter((w) => w.rank !== undefined).length;
  if (ranks) health('serving', 'good');
  else health('waiting for workers', 'bad');
  set(byId('policy'), (state.policy && state.policy.name) || '–');
  set(byId('epoch'), String(number(state.epoch)));
  set(byId('ranks'), ranks + (ranks < number(state.expectedWorkers) ? ' of ' + state.expectedWorkers : ''));
  set(byId('uptime'), seconds(parseFloat(state.uptime || '0')));
  set(byId('version'), state.version || '–');
  showTiles(state);
  showWorkers(state);
  showLatency();
  showRequests(state);
  showShadows(state);
  const last = samples[samples.length - 1];
  if (last) {
    const max = Math.max(...last.load), mean = last.load.reduce((a, b) => a + b, 0) / last.load.length;
    set(byId('summary'), 'Largest load ' + plain.format(max) + ' tokens on rank ' + last.load.indexOf(max) + ', mean ' +
        plain.format(mean) + ', idle share ' + percent(last.idle) + ', slowest rank ' + last.straggler + '.');
  }
}

// ---- charts ----

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
  return {g, left: 56, right: width - 10, top: 8, bottom: height - 22};
}

// Round numbers that divide 0..max into about four.
function ticks(max) {
  const raw = max / 4, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const result = [];
  for (let value = 0; value <= max * 1.0001; value += step) result.push(value);
  return result;
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
  const span = KEEP * 0.5;
  for (let s = 0; s <= span; s += 60) {
    g.fillText(s ? '-' + s / 60 + ' min' : 'now', right - (right - left) * s / span - (s ? 0 : 12), bottom + 6);
  }
}

// Draws `get` over the samples; breaks where the group changed.
function line(box, max, get, style, width, alpha = 1) {
  const {g, left, right, top, bottom} = box;
  g.beginPath();
  let pen = false, epoch = null;
  samples.forEach((sample, i) => {
    const value = get(sample);
    if (value === undefined || sample.epoch !== epoch) pen = false;
    epoch = sample.epoch;
    if (value === undefined) return;
    const x = right - (right - left) * (samples.length - 1 - i) / (KEEP - 1), y = bottom - (bottom - top) * value / max;
    if (pen) g.lineTo(x, y);
    else g.moveTo(x, y);
    pen = true;
  });
  g.globalAlpha = alpha;
  g.strokeStyle = style;
  g.lineWidth = width;
  g.lineJoin = 'round';
  g.stroke();
  g.globalAlpha = 1;
}

const maxOf = (sample) => sample.max === undefined ? (sample.max = Math.max(...sample.load)) : sample.max;
const meanOf = (sample) => sample.mean === undefined ?
    (sample.mean = sample.load.reduce((a, b) => a + b, 0) / sample.load.length) : sample.mean;

function drawLoad() {
  const box = prepare(byId('load'));
  const top = Math.max(1, ...samples.map(maxOf)) * 1.05;
  axes(box, top, (v) => short.format(v));
  const {g, left, right, bottom} = box;
  const x = (i) => right - (right - left) * (samples.length - 1 - i) / (KEEP - 1);
  const y = (v) => bottom - (bottom - box.top) * v / top;
  g.beginPath();
  samples.forEach((s, i) => g.lineTo(x(i), y(maxOf(s))));
  for (let i = samples.length - 1; i >= 0; --i) g.lineTo(x(i), y(meanOf(samples[i])));
  g.fillStyle = colour('--gap');
  g.fill();
  const ranks = Math.max(0, ...samples.map((s) => s.load.length));
  const alpha = Math.max(0.12, Math.min(0.75, 6 / ranks));
  const each = colour('--each');
  for (let rank = 0; rank < ranks; ++rank) line(box, top, (s) => s.load[rank], each, 1, alpha);
  line(box, top, meanOf, colour('--mean'), 2.5);
  line(box, top, maxOf, colour('--max'), 2.5);
  const tip = byId('tip');
  if (hover !== null && samples[hover]) {
    const s = samples[hover];
    g.strokeStyle = colour('--soft');
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(x(hover), box.top);
    g.lineTo(x(hover), bottom);
    g.stroke();
    tip.hidden = false;
    set(tip, new Date(s.t).toLocaleTimeString() + '  step ' + s.step + '\nlargest ' + plain.format(maxOf(s)) + ' (rank ' +
        s.load.indexOf(maxOf(s)) + ')\nmean ' + plain.format(meanOf(s)) + '\nidle ' + percent(s.idle) + '\nslowest rank ' +
        s.straggler + '\nwaiting ' + s.waiting);
    tip.style.left = Math.min(x(hover) + 8, right - tip.offsetWidth) + 'px';
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

// ---- acting ----

function ask(title, text, choose) {
  const dialog = byId('ask');
  set(byId('ask-title'), title);
  set(byId('ask-text'), text);
  byId('ask-choice').hidden = !choose;
  dialog.returnValue = 'no';
  dialog.showModal();
  byId(choose ? 'ask-policy' : 'ask-no').focus();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), {once: true});
  });
}

async function act(path, body) {
  try {
    const reply = await request(path, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)});
    say(reply.ok ? '' : 'Refused: ' + (await reply.text()).trim());
  } catch (error) {
    say('Not done: ' + error.message);
  }
}

async function askDrain(id) {
  if (await ask('Drain ' + id + '?', 'It takes no new requests, finishes what runs and then leaves the group.', false)) {
    await act('api/drain', {worker_id: id});
  }
}

async function askPolicy() {
  const select = byId('ask-policy');
  if (!select.children.length) {
    const reply = await request('api/policies');
    if (!reply.ok) return;
    for (const name of await reply.json()) select.append(new Option(name, name));
  }
  const state = states.length ? states[states.length - 1].state : {};
  select.value = (state.policy && state.policy.name) || select.value;
  if (await ask('Switch the policy?', 'The next decision is the new policy\'s. Requests that run stay where they are.', true)) {
    await act('api/policy', {name: select.value});
  }
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  set(byId('theme'), dark ? 'Light' : 'Dark');
  dirty = true;
}

byId('switch').addEventListener('click', askPolicy);
byId('pause').addEventListener('click', () => {
  paused = !paused;
  byId('pause').setAttribute('aria-pressed', String(paused));
  set(byId('pause'), paused ? 'Go on' : 'Pause');
  dirty = true;
});
byId('theme').addEventListener('click', () => theme(document.documentElement.dataset.theme !== 'dark'));
byId('load').addEventListener('pointermove', (event) => {
  const box = byId('load').getBoundingClientRect(), left = 56, right = box.width - 10;
  const i = Math.round(samples.length - 1 - (right - (event.clientX - box.left)) / (right - left) * (KEEP - 1));
  hover = i >= 0 && i < samples.length ? i : null;
  dirty = true;
});
byId('load').addEventListener('pointerleave', () => { hover = null; dirty = true; });
window.addEventListener('resize', () => { dirty = true; });
document.addEventListener('visibilitychange', () => { dirty = true; });

theme(window.matchMedia('(prefers-color-scheme: dark)').matches);
follow();
pollState();
requestAnimationFrame(draw);
