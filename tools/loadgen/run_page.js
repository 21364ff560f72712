// Shows a run: the keys of its --json, with "distributions" and "series".

const LATENCIES = {
  ttft_s: ['TTFT', 'time to first token'], tpot_s: ['TPOT', 'time per output token'], itl_s: ['ITL', 'time between tokens'],
  e2e_s: ['E2E', 'whole request'], schedule_lag_s: ['sent late by', 'schedule lag']
};
const CLIENT_LATENCIES = ['ttft_s', 'tpot_s', 'itl_s', 'e2e_s'];
const LOG_SPAN = 50;  // the axis of a latency is logarithmic where the ratio of its values is larger
const TIME = 'series/t_s';
const ITL_TEXT = 'TPOT is a request\'s mean time between tokens, ITL the single gaps.';

// A value that is missing is NaN, an empty text or list.
class Run {
  constructor(result) { this.result = result; }
  find(path) { return path.split('/').reduce((value, key) => value?.[key], this.result); }
  has(path) { return this.find(path) != null; }
  number(path) {
    const value = this.find(path);
    return Number.isFinite(value) ? value : NaN;
  }
  count(path) { return Math.trunc(this.number(path)) || 0; }
  text(path) {
    const value = this.find(path);
    return typeof value === 'string' ? value : '';
  }
  list(path) {
    const value = this.find(path);
    return Array.isArray(value) ? value : [];
  }
  numbers(path, factor = 1) { return this.list(path).map((value) => Number.isFinite(value) ? value * factor : NaN); }
  // [[name, value]...] of an object.
  members(path) {
    const value = this.find(path);
    return value !== null && typeof value === 'object' && !Array.isArray(value) ? Object.entries(value) : [];
  }
  get failed() { return this.members('failed').reduce((sum, [code]) => sum + this.count(`failed/${code}`), 0); }
}

const count = (value) => fixed(value, 0);
const brief = (value) => String(Number(value.toPrecision(4)));
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function workload(run) {
  const arrival = run.text('settings/arrival'), rate = run.number('settings/rate');
  const source = run.text('workload/source');
  if (arrival === 'closed') return `${source}, closed loop of ${run.count('settings/concurrency')} requests`;
  const span = rate > 0 ? `, ${brief(rate)} requests/s` : '';
  return `${source}, ${arrival} arrivals${span}`;
}

const timeAxis = (run) => ({label: 'time since the start', unit: 's', min: 0, max: run.number('duration_s') || undefined});
const line = (run, name, x, y, factor = 1, style = {}) => ({name, x: run.numbers(x), y: run.numbers(y, factor), ...style});

// Milliseconds when all values are below a second, a logarithmic axis when their ratio exceeds LOG_SPAN.
function inSeconds(spec) {
  const values = spec.series.flatMap((series) => series.y).filter((y) => y > 0);
  const highest = values.reduce((a, b) => Math.max(a, b), 0), lowest = values.reduce((a, b) => Math.min(a, b), Infinity);
  spec.y.unit = highest < 1 ? 'ms' : 's';
  spec.y.log = highest > LOG_SPAN * lowest;
  if (highest < 1) spec.series = spec.series.map((series) => ({...series, y: series.y.map((y) => y * 1e3)}));
  return spec;
}

function latencies(run) {
  const figures = ['mean', 'p50', 'p90', 'p99', 'p99.9', 'max'];
  const rows = [...Object.entries(LATENCIES).map(([key, [name]]) => [name, key])]
    .filter(([, path]) => run.count(`${path}/count`) > 0)
    .map(([name, path]) => [name, ...figures.map((figure) => run.number(`${path}/${figure}`) * 1e3), run.count(`${path}/count`)]);
  table({
    title: 'Latencies', note: 'From the time a request was due, not from the time it was sent. ' + ITL_TEXT,
    columns: [{name: 'latency'}, ...figures.map((name) => ({name, unit: 'ms', decimals: 2})), {name: 'samples'}], rows
  });
}

function counts(run) {
  const always = (name, value) => [[name, count(value)]];
  const any = (name, path) => run.count(path) === 0 ? [] : always(name, run.count(path));
  parameters([
    ...always('requests sent', run.count('requests_sent')), ...always('completed', run.count('completed')),
    ...always('failed', run.failed), ...any('cancelled by the interruption', 'interrupted'),
    ...any('due, but not sent in time', 'not_sent'), ...any('retries', 'retries'), ...any('resumed', 'resumed'),
    ...any('tokens that differed after a resume', 'token_mismatches'), ...always('broken streams', run.count('stream_breaches')),
    ...always('prompt tokens', run.count('prompt_tokens')), ...always('output tokens', run.count('output_tokens'))
  ]);
}

function goodput(run) {
  if (!run.has('goodput')) return;
  heading('Goodput');
  paragraph(`${fixed(run.number('goodput/share') * 100, 2)} % of the requests due met every limit: ` +
    `${fixed(run.number('goodput/requests_per_s'), 1)} requests/s.`);
  table({
    title: 'Limits', note: 'A request can exceed several limits. Requests that failed or were not sent meet none.',
    columns: [{name: 'latency'}, {name: 'limit'}, {name: 'completed requests beyond it'}],
    rows: ['ttft', 'tpot', 'e2e'].filter((key) => Number.isFinite(run.number(`goodput/limits/${key}_s`)))
      .map((key) => [key.toUpperCase(), `${brief(run.number(`goodput/limits/${key}_s`))} s`, run.count(`goodput/missed/${key}`)])
  });
}

function latencyChart(run, key) {
  const [name, meaning] = LATENCIES[key], lag = key === 'schedule_lag_s';
  return inSeconds({
    title: lag ? 'How late the generator was' : `${name}: ${meaning}`, x: timeAxis(run), y: {label: meaning},
    note: lag ? 'From the time a request was due to the time it was sent. Latencies contain it.'
      : key === 'itl_s' ? 'By the time when the later token arrived.' : 'Completed requests, by the time they were due.',
    series: ['p50', 'p90', 'p99', ...(lag ? ['max'] : [])].map((q) => line(run, q, TIME, `series/${key}/${q}`))
  });
}

function overTime(run) {
  heading('Over time');
  const x = timeAxis(run);
  chart({
    title: 'Throughput', note: 'Output tokens by the time when they arrived, including those of requests that failed later.',
    x, y: {label: 'throughput', unit: 'tokens/s', min: 0}, series: [line(run, 'output tokens', TIME, 'series/tokens_per_s')]
  });
  chart({
    title: 'Requests', note: 'Requests by the time they were due, and by the time they ended.',
    x, y: {label: 'rate', unit: 'requests/s', min: 0},
    series: [line(run, 'due', TIME, 'series/due_per_s'), line(run, 'completed', TIME, 'series/completed_per_s'),
             line(run, 'failed', TIME, 'series/failed_per_s')].filter(({name, y}) => name !== 'failed' || y.some((value) => value > 0))
  });
  chart({
    title: 'Requests under way', x, y: {label: 'requests', min: 0},
    note: 'Sent and not ended.', series: [line(run, 'under way', TIME, 'series/under_way_mean')]
  });
  for (const key of CLIENT_LATENCIES) chart(latencyChart(run, key));
}

const share = () => ({label: 'share with at most this latency', unit: '%', min: 0, max: 100});
const distribution = (run, name, key) => line(run, name, `distributions/${key}`, 'distributions/share', 100);

function group(run) {
  if (!run.has('barrier')) return;
  heading('The group');
  const number = (member) => run.number(`barrier/${member}`), ms = (member, decimals) => `${fixed(number(member) * 1e3, decimals)} ms`;
  const percent = (member, decimals = 2) => `${fixed(number(member) * 100, decimals)} %`;
  parameters([
    ['policy', run.text('barrier/policy')], ['ranks', count(run.count('barrier/ranks'))], ['steps', count(run.count('barrier/steps'))],
    ['mean step', ms('step_s_mean', 2)], ['idle at the barrier', percent('idle_fraction')],
    ['1 - mean/max load', percent('load_idle_fraction')], ['mean imbalance', `${fixed(number('avg_imbalance_tokens'), 0)} tokens`],
    ['gap from barrier to next step', ms('gap_s_mean', 3)], ['decision', ms('decide_s_mean', 3)],
    ['late plans', count(run.count('barrier/late_plans'))], ['steps with every slot taken', percent('saturated_fraction', 0)]
  ]);
}

function failures(run) {
  const codes = run.members('failed').map(([code]) => code), breaches = run.list('breach_examples');
  if (!codes.length && !breaches.length) return;
  heading('Failures');
  if (codes.length) {
    table({
      title: 'By status', columns: [{name: 'status'}, {name: 'requests'}, {name: 'first message'}],
      rows: codes.map((code) => [code, run.count(`failed/${code}`), run.text(`failed_examples/${code}`)])
    });
  }
  for (const i of breaches.keys()) paragraph(`Broken stream: ${run.text(`breach_examples/${i}`)}`);
}

function settings(run) {
  heading('Settings');
  const text = (value) => typeof value === 'string' ? value : JSON.stringify(value);
  parameters([
    ['started at', run.text('started_at')], ['bfio_loadgen', run.text('version')],
    ['workload', `${run.text('workload/source')} (${run.text('workload/format')}), ${count(run.count('workload/requests'))} requests, ` +
      `${count(run.count('workload/dropped'))} rows dropped`],
    ...run.members('settings').map(([name, value]) => [name, text(value)]).filter(([, value]) => value !== '')
  ]);
}

function showRun(run) {
  title(`Load test: ${workload(run)}`,
    `${count(run.count('completed'))} requests completed in ${significant(run.number('duration_s'), 3)} s, ` +
    `${run.failed === 0 ? 'none' : count(run.failed)} failed: ${fixed(run.number('throughput_tokens_per_s'), 0)} tokens/s, ` +
    `${fixed(run.number('throughput_requests_per_s'), 1)} requests/s.` + (run.count('interrupted') > 0 ? ' The run was interrupted.' : ''));
  heading('Results');
  latencies(run);
  counts(run);
  goodput(run);
  overTime(run);
  heading('Distributions');
  chart({
    title: 'Share of requests by latency', x: {label: 'latency', unit: 's', log: true}, y: share(),
    note: 'Share of requests (for ITL: of gaps between tokens) with at most this latency.',
    series: CLIENT_LATENCIES.map((key) => distribution(run, LATENCIES[key][0], key))
  });
  group(run);
  if (hasData(latencyChart(run, 'schedule_lag_s'))) {
    heading('The generator itself');
    chart(latencyChart(run, 'schedule_lag_s'));
  }
  failures(run);
  settings(run);
  contents();
}

showRun(new Run(data));
