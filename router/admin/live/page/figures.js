'use strict';
// The texts and numbers of the live page, from `states` and `samples` of live.js.

const byId = (id) => document.getElementById(id);

// ---- figures ----

const number = (value) => Number(value || 0);  // 64-bit numbers arrive as strings
const short = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 3});
const plain = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const percent = (share) => (100 * share).toFixed(share < 0.1 ? 2 : 1) + ' %';

function seconds(s) {
  if (s < 120) return s + ' s';
  const minutes = Math.round(s / 60);
  if (minutes < 120) return minutes + ' min';
  const hours = Math.round(s / 3600);
  return hours < 48 ? hours + ' h' : Math.round(hours / 24) + ' d';
}

// Difference of a counter between now and a minute ago.
function difference(get) {
  const last = states[states.length - 1], first = states[0];
  return {value: number(get(last.state)) - number(get(first.state)), seconds: (last.t - first.t) / 1000};
}

// ---- text ----

// Changes only the text of existing elements, so that focus and selection remain.
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

function showTiles(state) {
  const recent = samples.slice(-120);
  const mean = (get) => recent.length ? recent.reduce((a, s) => a + get(s), 0) / recent.length : NaN;
  const tokens = difference((s) => s.steps && s.steps.generatedTokens);
  const steps = difference((s) => s.steps && s.steps.steps);
  const running = (state.workers || []).reduce((a, w) => a + number(w.activeRequests), 0);
  const slots = (state.workers || []).reduce((a, w) => a + number(w.slots), 0);
  const per = (d) => d.seconds > 0 ? d.value / d.seconds : NaN;
  const last = samples[samples.length - 1];
  const slowest = last && (state.workers || []).length ? String(last.straggler ?? '–') : '–';
  const tiles = [
    ['idle', 'idle share\nlast minute', isNaN(mean((s) => s.idle)) ? '–' : percent(mean((s) => s.idle))],
    ['tokens', 'tokens per second\nlast minute', isNaN(per(tokens)) ? '–' : short.format(per(tokens))],
    ['steps', 'steps per second\nlast minute', isNaN(per(steps)) ? '–' : per(steps).toFixed(1)],
    ['slowest', 'slowest rank\nnow', slowest],
    ['running', 'running\nof ' + plain.format(slots) + ' slots', plain.format(running)],
    ['waiting', 'waiting\nof ' + plain.format(number(state.maxWaitingRequests)), plain.format(number(state.waitingRequests))],
    ['completed', 'completed\n' + plain.format(number(state.requests && state.requests.failed)) + ' failed',
     plain.format(number(state.requests && state.requests.completed))],
  ];
  const pool = state.handOffs;
  if (pool) {
    tiles.push(['prompts', 'prompts computed\n' + plain.format(number(pool.promptsWaiting)) + ' waiting', plain.format(number(pool.promptsUnderWay))],
      ['handoffs', 'hand-offs waiting\noldest ' + number(pool.oldestS).toFixed(1) + ' s', plain.format(number(pool.waiting))],
      ['promised', 'slots promised\n' + short.format(number(pool.promisedKvTokens)) + ' KV tokens', plain.format(number(pool.promisedSlots))]);
  }
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
  const steps = {};  // by group: steps in which some rank was the slowest
  for (const w of workers) steps[w.group] = (steps[w.group] || 0) + number(w.stragglerSteps);
  const phases = {WORKER_PHASE_JOINING: 'joining', WORKER_PHASE_SERVING: 'serving', WORKER_PHASE_DRAINING: 'draining'};
  rows(document.querySelector('#workers tbody'), workers.map((w) => w.workerId), (id) => {
    const row = document.createElement('tr');
    for (let i = 0; i < 9; ++i) row.append(document.createElement('td'));
    const bar = document.createElement('div');
    bar.className = 'bar';
    const track = document.createElement('div');
    track.append(document.createElement('i'));
    bar.append(track, document.createElement('span'));
    row.children[3].append(bar);
    const drain = document.createElement('button');
    drain.type = 'button';
    drain.addEventListener('click', () => drain.dataset.drains ? askUndrain(id) : askDrain(id));
    row.children[8].append(drain);
    return row;
  }, (row, i) => {
    const w = workers[i], load = number(w.loadTokens), share = load / most;
    const at = (n) => row.children[n];
    set(at(0), w.rank === undefined ? '–' : (state.groups || []).length > 1 ? w.group + ':' + w.rank : String(w.rank));
    set(at(1), w.workerId + (w.engine ? ' (' + w.engine + ')' : ''));
    set(at(2), phases[w.phase] || '–');
    const fill = at(3).querySelector('i');
    fill.style.width = (100 * share).toFixed(1) + '%';
    fill.className = load === most && load > 0 ? 'most' : '';
    set(at(3).querySelector('span'), plain.format(load));
    set(at(4), plain.format(number(w.activeRequests)) + ' / ' + plain.format(number(w.slots)));
    const kv = number(w.kvTokens);
    set(at(5), kv ? percent(load / kv) + ' / ' + percent(number(w.reservedKvTokens) / kv) : '–');
    set(at(6), plain.format(number(w.stepPrefillTokens)));
    set(at(7), steps[w.group] ? percent(number(w.stragglerSteps) / steps[w.group]) : '–');
    const drain = at(8).querySelector('button'), drains = w.phase === 'WORKER_PHASE_DRAINING';
    const label = drains ? 'Undrain' : 'Drain';
    drain.dataset.drains = drains ? '1' : '';
    set(drain, label);
    drain.setAttribute('aria-label', label + ' ' + w.workerId);
  });
}

// Digests of the groups' models, abbreviated as in logs.
function models(state) {
  return [...new Set((state.groups || []).map((g) => (g.model || '').slice(0, 12)))].filter((m) => m);
}

// The charts show one group; the selection appears where there are several.
function showGroups(state) {
  const groups = state.groups || [];
  byId('choose-group').hidden = groups.length < 2;
  const differ = models(state).length > 1;
  rows(byId('group'), groups.map((g) => String(g.index)), () => document.createElement('option'), (option, i) => {
    option.value = String(groups[i].index);
    set(option, groups[i].name + (differ && groups[i].model ? ' (model ' + groups[i].model.slice(0, 12) + ')' : ''));
  });
  // The selected group may have been removed.
  if (groups.length && !groups.some((g) => g.index === group)) choose(groups[0].index);
  byId('group').value = String(group);
}

// The rule of placement that the chosen group follows, and the step times of the other rules over its own, shortest first.
function showPlacement(state) {
  const chosen = (state.groups || []).find((g) => g.index === group), placement = chosen && chosen.placement;
  byId('placement-pair').hidden = !placement;
  if (!placement) return;
  const others = [...placement.candidates, ...placement.watched].filter((c) => c.rule !== placement.rule)
      .sort((a, b) => a.stepRatio - b.stepRatio);
  set(byId('placement'), placement.rule + (others.length ? '; step time under ' : '') +
      others.map((c) => c.rule + ' ×' + c.stepRatio.toFixed(3)).join(', '));
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
  set(byId('model'), models(state).join(', ') || '–');
  set(byId('version'), state.version || '–');
  showGroups(state);
  showPlacement(state);
  showTiles(state);
  showWorkers(state);
  const last = samples[samples.length - 1];
  if (last) {
    const max = Math.max(...last.load), mean = last.load.reduce((a, b) => a + b, 0) / last.load.length;
    set(byId('summary'), 'Largest load ' + plain.format(max) + ' tokens on rank ' + last.load.indexOf(max) + ', mean ' +
        plain.format(mean) + ', idle share ' + percent(last.idle) + ', slowest rank ' + (last.straggler ?? '–') + '.');
  }
}
