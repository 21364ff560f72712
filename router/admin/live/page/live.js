'use strict';
// The live page: it receives samples as server-sent events and requests the cluster's state every two seconds;
// figures.js shows both as text, charts.js as charts.

const KEEP = 600;              // samples kept: five minutes at least
const STATE_EVERY_MS = 2000;
const WINDOW_MS = 60000;       // latencies and rates are of the last minute

let all = [];                  // samples of every group, oldest first
let samples = [];              // those of the group that is shown
let group = null;              // its index; null: the first one that sends samples
let states = [];               // [{t, state}], for differences over the last minute
let policies = null;           // that can be selected; empty where this port is read-only
let paused = false;
let hover = null;              // the pointer's x in the chart of loads
let dirty = true;              // the charts have to be drawn again
let token = sessionStorage.getItem('bfio-token') || '';

// ---- requests to the router ----

function headers(more) {
  return Object.assign(token ? {Authorization: 'Bearer ' + token} : {}, more);
}

async function request(path, options = {}) {
  for (;;) {
    const sent = token;
    const reply = await fetch(path, Object.assign({cache: 'no-store'}, options, {headers: headers(options.headers)}));
    if (reply.status !== 401) return reply;
    // Another request may have asked for the token meanwhile.
    if (token === sent && !(await askToken(sent !== ''))) return reply;
  }
}

// Asks for the token, once for all concurrent requests. False: none was given.
let asking = null;
function askToken(refused) {
  if (!asking) {
    asking = (async () => {
      byId('ask-token').value = '';
      const given = await ask('An admin token is needed', refused ? 'The router does not accept the last one.' :
          'This router shows its measurements to operators only.', 'token', 'Enter');
      if (!given || !byId('ask-token').value.trim()) return false;
      token = byId('ask-token').value.trim();
      sessionStorage.setItem('bfio-token', token);
      return true;
    })().finally(() => { asking = null; });
  }
  return asking;
}

// Shows errors by kind; a success clears only the error of its own kind.
let saying = '';
function say(text, about = 'measurements') {
  if (!text && saying !== about) return;
  saying = about;
  if (byId('message').textContent !== text) byId('message').textContent = text;
  byId('message').hidden = !text;
}

function health(text, kind) {
  const chip = byId('health');
  if (chip.textContent !== text) chip.textContent = text;
  chip.className = 'chip ' + kind;
}

// Reads the event stream by fetch, because EventSource cannot send a token. Reconnects a second after a failure.
async function follow() {
  for (;;) {
    try {
      const last = all.length ? all[all.length - 1].n : 0;
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
      say('No measurements: ' + error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function add(batch) {
  for (const sample of batch) {
    // Sample numbers start again when the router restarts.
    if (all.length && sample.n <= all[all.length - 1].n) all = [];
    all.push(sample);
  }
  choose(group);
}

// Shows that group's samples, and drops samples beyond the bound of each group.
function choose(index) {
  group = index;
  const kept = new Map();
  all = all.reverse().filter((s) => {
    kept.set(s.group, (kept.get(s.group) || 0) + 1);
    return kept.get(s.group) <= KEEP;
  }).reverse();
  if (group === null && all.length) group = all[0].group;
  samples = all.filter((s) => s.group === group);
  dirty = true;
}

async function learnPolicies() {
  const reply = await request('api/policies');
  if (!reply.ok) throw new Error((await reply.text()).trim());
  policies = await reply.json();
  for (const name of policies) byId('ask-policy').append(new Option(name, name));
  document.body.classList.toggle('watching', !policies.length);
}

async function pollState() {
  try {
    const reply = await request('api/page');
    if (!reply.ok) throw new Error((await reply.text()).trim());
    const state = await reply.json();
    if (!policies) await learnPolicies();
    const last = states.length ? states[states.length - 1].state : null;
    // A restarted router counts from 0.
    if (last && parseFloat(state.uptime || '0') < parseFloat(last.uptime || '0')) states = [];
    states.push({t: Date.now(), state});
    while (states.length > 2 && states[1].t < Date.now() - WINDOW_MS) states.shift();
    say('');
    showState();
  } catch (error) {
    health('not connected', 'bad');
    say('No measurements: ' + error.message);
  }
  setTimeout(pollState, STATE_EVERY_MS);
}

// ---- actions ----

// Opens the dialog with the field `about` ("policy", "token" or none); false when it is already open.
let asked = Promise.resolve(false);
async function ask(title, text, about, yes) {
  const dialog = byId('ask');
  // The dialog's close event comes a little after the dialog has disappeared.
  if (!dialog.open) await asked;
  if (dialog.open) return false;
  set(byId('ask-title'), title);
  set(byId('ask-text'), text);
  set(byId('ask-yes'), yes);
  for (const field of ['policy', 'token']) byId('ask-choose-' + field).hidden = field !== about;
  dialog.returnValue = 'no';
  dialog.showModal();
  byId(about ? 'ask-' + about : 'ask-no').focus();
  asked = new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), {once: true});
  });
  return asked;
}

async function act(path, body) {
  try {
    const reply = await request(path, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)});
    say(reply.ok ? '' : 'Refused: ' + (await reply.text()).trim(), 'act');
  } catch (error) {
    say('Request failed: ' + error.message, 'act');
  }
}

async function askDrain(id) {
  if (await ask('Drain ' + id + '?', 'It takes no new requests, and leaves the group when its running requests have ended.', '', 'Drain')) {
    await act('api/drain', {worker_id: id});
  }
}

async function askUndrain(id) {
  if (await ask('Undrain ' + id + '?', 'It takes new requests again.', '', 'Undrain')) {
    await act('api/undrain', {worker_id: id});
  }
}

async function askPolicy() {
  const select = byId('ask-policy');
  const state = states.length ? states[states.length - 1].state : {};
  select.value = (state.policy && state.policy.name) || select.value;
  if (await ask('Switch the policy?', 'The new policy makes the next decision. Running requests stay on their workers.', 'policy', 'Switch')) {
    await act('api/policy', {name: select.value});
  }
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  set(byId('theme'), dark ? 'Light' : 'Dark');
  dirty = true;
}

byId('switch').addEventListener('click', askPolicy);
byId('group').addEventListener('change', () => choose(Number(byId('group').value)));
byId('ask-no').addEventListener('click', () => byId('ask').close('no'));
byId('pause').addEventListener('click', () => {
  paused = !paused;
  byId('pause').setAttribute('aria-pressed', String(paused));
  set(byId('pause'), paused ? 'Resume' : 'Pause');
  dirty = true;
});
byId('theme').addEventListener('click', () => theme(document.documentElement.dataset.theme !== 'dark'));
byId('load').addEventListener('pointermove', (event) => {
  hover = event.clientX - byId('load').getBoundingClientRect().left;
  dirty = true;
});
byId('load').addEventListener('pointerleave', () => { hover = null; dirty = true; });
window.addEventListener('resize', () => { dirty = true; });
document.addEventListener('visibilitychange', () => { dirty = true; });

theme(window.matchMedia('(prefers-color-scheme: dark)').matches);
follow();
pollState();
requestAnimationFrame(draw);
