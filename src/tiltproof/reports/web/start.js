/* Regression: a fan for the proved range, needles for prediction and right answer; and what is done when the page opens. */
const fanScale = regression ? (() => {
  const all = [...data.lower, ...data.upper].map((each) => each[0]).filter((value) => value !== null);
  const least = Math.min(...all), most = Math.max(...all);
  /* steering angles are radians and positive to the left; anything else is spread over the fan from left to right */
  if (Math.max(-least, most) <= 1.6 && data.prediction[0].length === 1) return {angle: (value) => -value, text: 'Needles show the output as an angle in radians, positive to the left, as a steering wheel turns.'};
  const half = (most - least) / 2 || 1;
  return {angle: (value) => ((value - least) / half - 1) * 1.1, text: `Needles show the first output from ${number(least)} (left) to ${number(most)} (right).`};
})() : null;

function fan(k, now = data.prediction[k][0]) {
  const length = 92, tip = (value, reach) => {
    const angle = Math.min(Math.max(fanScale.angle(value), -1.48), 1.48);
    return [100 + reach * Math.sin(angle), 100 - reach * Math.cos(angle)];
  };
  const lower = data.lower[k][0], upper = data.upper[k][0];
  const svg = drawn('svg', {viewBox: '0 0 200 100', preserveAspectRatio: 'xMidYMax meet', 'aria-hidden': 'true'});
  if (lower !== null && upper !== null) {
    const rim = Array.from({length: 25}, (_, step) => tip(lower + ((upper - lower) * step) / 24, length));
    svg.append(drawn('path', {d: path([[100, 100], ...rim]) + 'Z', fill: '#e03a2f', 'fill-opacity': '.5', stroke: '#ff5a4e', 'stroke-width': '1'}));
  }
  const needle = (value, reach, color) => svg.append(drawn('path', {d: path([[100, 100], tip(value, reach)]), stroke: color, 'stroke-width': '2', 'stroke-linecap': 'round'}));
  if (data.values[k]) needle(data.values[k][0], 74, '#2fbf5b');
  if (now !== null) needle(now, 83, '#4d8dff');
  return svg;
}
function rangeText(k) {
  const wide = data.widths[k] === null ? 'no bound was proved' : `${above(data.widths[k])} wide at most`;
  return `Proved: for every parameter of the range the outputs stay inside the ranges below, ${wide}; ${number(data.innerWidths[k])} of that is reached for certain.${data.complete[k] ? '' : ' The budget ended before the range was as tight as asked for.'}`;
}
function outputTable(k) {
  const names = ['output', 'prediction', 'proved lowest', 'proved highest', 'reached lowest', 'reached highest', 'right answer'];
  return plainTable(names, data.prediction[k].map((_, j) => [String(j), ...['prediction', 'lower', 'upper', 'inner_lower', 'inner_upper'].map((name) => ({lower: below, upper: above}[name] || number)(data[name][k][j], 5)), data.values[k] ? number(data.values[k][j], 5) : 'not given']));
}
function film() {
  const many = Math.min(12, data.count, data.thumbnails.length);
  if (!many) return;
  byId('film').hidden = false;
  byId('film-scale').textContent = fanScale.text;
  byId('film-legend').append(element('ul', {class: 'legend'}, key('range', 'certified range'), key('predicted', 'prediction'), data.values.some((each) => each) ? key('true', 'right answer') : ''));
  for (let step = 0; step < many; step += 1) {
    const k = Math.floor((step * data.count) / many);
    const block = (blockOf(k) || {}).image || thumbnail(k);
    const words = rangeWords(k);
    byId('film-frames').append(element('li', {}, element('button', {type: 'button', 'aria-label': `Open image ${data.first + k}: ${words}`, onclick: () => openImage(k)},
      element('div', {class: 'frame'}, element('img', {src: block, alt: ''}), fan(k)), element('small', {class: 'fine'}, `Image ${data.first + k}: ${words}`))));
  }
}

/* The first screen's picture: the image that matters most, turning. */
function hero() {
  const k = rows.filter((each) => detailed.has(each)).sort((a, b) => places[a] - places[b])[0];
  if (k === undefined) return;
  const block = blockOf(k), kind = regression ? '' : data.verdictNames[data.verdicts[k]];
  const title = {certified: data.tightened ? 'The closest call: image' : 'Image', falsified: 'A counterexample: image', unknown: 'Not decided: image', misclassified: 'Image'}[kind] || 'The widest range: image';
  const answer = regression ? '' : `label ${data.labels[k]}${block.worstAnswer === data.labels[k] ? '' : `, answers ${block.worstAnswer} at ${point(block.worst) || 'its worst'}`}`;
  byId('hero').replaceChildren(
    element('div', {class: 'hero-head'}, element('h2', {id: 'hero-heading'}, `${title} ${data.first + k}`), regression ? '' : verdictMark(kind), element('span', {class: 'fine'}, answer)),
    turntable(k, {...block, map: null}, {play: true}),
    element('p', {class: 'hero-foot'}, element('button', {type: 'button', class: 'quiet', onclick: () => openImage(k)}, 'Bounds and details'), element('a', {href: '#images', class: 'fine'}, 'all images ↓')));
}
function curve() {
  if (!data.curve) return;
  byId('curve').hidden = false;
  chart(byId('curve-chart'), curveChart);
  byId('curve-chart').after(element('ul', {class: 'legend'}, key('proved', 'certified: at least this share'), key('unfalsified', 'at most this share: no counterexample found in the next smaller range')));
  const lines = data.curve.map((each) => [each.transform, `${number(100 * each.share)} %`, ...each.counts.map(count), percent(each.counts[0], data.count)]);
  byId('curve-table').append(plainTable(['range', 'size', ...data.verdictNames, 'certified share'], lines));
}
function copying() {
  if (!navigator.clipboard) return;
  const button = byId('copy');
  button.hidden = false;
  button.addEventListener('click', () => navigator.clipboard.writeText(byId('quote').textContent).then(() => { byId('copied').textContent = 'Copied.'; }, () => { byId('copied').textContent = 'The browser did not allow it.'; }));
}

/* The strip of a drive: a bar opens its frame, the worst of those that share it. */
function drive() {
  const strip = byId('drive');
  if (!strip) return;
  const worst = byId('worst');
  worst.hidden = false;
  strip.addEventListener('click', (event) => {
    const bar = event.target.closest('[data-row]');
    if (bar) openImage(Number(bar.dataset.row));
  });
}

hero();
drive();
if (regression) film(); else curve();
filters();
views();
refresh();
copying();
byId('detail').addEventListener('close', closed);
byId('detail').addEventListener('click', (event) => { if (event.target === byId('detail')) byId('detail').close(); });
byId('detail').addEventListener('keydown', (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (step && !event.target.closest('input, select, .scroll, svg')) { event.preventDefault(); moveBy(step); }
});
