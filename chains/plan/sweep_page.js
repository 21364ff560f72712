// Draws {"servers", "blocks", "points"}, the output of SweepJson for each demand.

const carried = data.points.filter((point) => point.carried);
const over = (name, y, style = {}) => ({name, x: carried.map((point) => point.demand_per_s), y: carried.map(y), ...style});
const demand = {label: 'demand', unit: 'jobs/s'};

title('Plans over demand', `${data.servers} servers, ${data.blocks} blocks.`);
chart({title: 'Best cache reservation', x: demand, y: {label: 'c', unit: 'jobs per block', min: 0},
       series: [over('c', (point) => point.reserve, {steps: true})]});
chart({title: 'Mean response', x: demand, y: {label: 'response', unit: 's', min: 0},
       series: [over('lower bound', (point) => point.response.lower_s), over('upper bound', (point) => point.response.upper_s)]});
table({
  title: 'Plans over demand',
  columns: [{name: 'demand', unit: 'jobs/s'}, {name: 'c'}, {name: 'chains'}, {name: 'jobs at once'}, {name: 'rate', unit: 'jobs/s'},
            {name: 'response, lower', unit: 's'}, {name: 'response, upper', unit: 's'}],
  rows: data.points.map((point) => [point.demand_per_s, point.reserve, point.chains, point.capacity, point.rate_per_s,
                                    point.response?.lower_s, point.response?.upper_s])
});
