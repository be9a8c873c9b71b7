/* One image: opened from the table, left with Esc, and followed by its neighbors in the table with the arrow keys. */
const detailed = new Set(data.detailed);
let current = null;

function openImage(k) {
  const dialog = byId('detail');
  current = k;
  dialog.replaceChildren(detailHead(k), element('div', {class: 'detail-body'}, detailBody(k)));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  byId('detail-title').focus();
}
function moveBy(step) {
  const place = state.shown.indexOf(current) + step;
  if (place < 0 || place >= state.shown.length) return;
  const page = Math.floor(place / ROWS);
  if (page !== state.page) { state.page = page; showPage(); }
  openImage(state.shown[place]);
}
function closed() {
  /* the reader goes on in the table where the last image stands */
  const button = byId('table').querySelector(`[data-image="${current}"]`);
  if (button) button.focus();
}
function detailHead(k) {
  const place = state.shown.indexOf(k);
  return element('div', {class: 'detail-head'},
    element('h2', {id: 'detail-title', tabindex: '-1'}, `Image ${data.first + k}`),
    regression ? '' : verdictMark(data.verdictNames[data.verdicts[k]]),
    element('span', {class: 'gap'}),
    element('button', {type: 'button', 'aria-label': 'Previous image', disabled: place <= 0, onclick: () => moveBy(-1)}, '←'),
    element('button', {type: 'button', 'aria-label': 'Next image', disabled: place < 0 || place + 1 >= state.shown.length, onclick: () => moveBy(1)}, '→'),
    element('button', {type: 'button', onclick: () => byId('detail').close()}, 'Close'));
}

function said(k) {
  const margin = number(data.margins[k], 5), label = data.labels[k];
  const kept = data.keep && {
    certified: `Proved, by a margin of at least ${margin}, for every parameter of the range: the network ${data.keep} (label ${label}).`,
    falsified: `Broken by ${margin.replace('−', '')} at a parameter of the range. To prove was: the network ${data.keep} (label ${label}).`,
    misclassified: `Broken already without a transformation, with margin ${margin}. To prove was: the network ${data.keep} (label ${label}).`,
  }[data.verdictNames[data.verdicts[k]]];
  return kept || {
    certified: `Proved: label ${label} wins by at least ${margin} over every other class, for every parameter of the range.`,
    falsified: `Broken: a transformation of the range makes the network answer wrong; there label ${label} loses by at least ${margin.replace('−', '')}.`,
    unknown: `Not decided. ${data.margins[k] === null ? 'No lower bound of the margin was found.' : `The best lower bound of the margin is ${margin}.`}`,
    misclassified: `Wrong already without a transformation: label ${label} has margin ${margin}.`,
  }[data.verdictNames[data.verdicts[k]]];
}
function detailBody(k) {
  const block = detailed.has(k) ? JSON.parse(byId(`detail-${k}`).textContent) : null;
  const parts = [element('p', {class: 'lead'}, regression ? rangeText(k) : said(k))];
  const broken = regression ? null : data.counterexamples[k];
  if (broken) parts.push(element('p', {class: 'lead'}, element('strong', {}, 'Counterexample: '), point(broken), block ? `. The network answers ${block.worstAnswer}.` : '.'));
  if (!regression && data.reasons[k]) parts.push(element('p', {class: 'lead'}, element('strong', {}, 'Why: '), data.reasons[k]));
  if (!regression && data.openBoxes[k]) parts.push(element('p', {class: 'lead'}, element('strong', {}, 'Stayed open: '), boxText(...data.openBoxes[k])));
  if (!block) {
    if (thumbnail(k)) parts.push(element('ul', {class: 'figures'}, figure(thumbnail(k), 'the image', '', `Image ${data.first + k}`, regression ? k : null)));
    parts.push(element('p', {class: 'fine'}, 'Margins over the parameters and pixel bounds are not part of this report for this image.'));
  } else parts.push(...looked(k, block));
  if (regression) parts.push(element('h3', {}, 'Outputs'), element('div', {class: 'scroll'}, outputTable(k)));
  parts.push(element('p', {class: 'fine'}, `${count(data.boxes[k])} boxes, ${number(data.seconds[k], 3)} s.`));
  return parts;
}

/* What is there for an image that was looked at closely. */
function looked(k, block) {
  const worst = point(block.worst);
  const answers = regression ? ['', ''] : [`the network answers ${block.answer}`, `${worst}; margin ${number(block.worstMargin)}, answer ${block.worstAnswer}`];
  const box = boxText(...block.box);
  const figures = element('ul', {class: 'figures'},
    figure(block.image, 'the image', answers[0], 'The image, untransformed', regression ? k : null),
    figure(block.turned, regression ? 'transformed to its extreme' : data.counterexamples[k] ? 'the counterexample' : 'worst transformation found', regression ? worst : answers[1], `The image transformed with ${worst}`, null),
    figure(block.lower, 'lower pixel bound', 'no pixel is darker', `Lower pixel bounds over ${box}`, null),
    figure(block.upper, 'upper pixel bound', 'no pixel is brighter', `Upper pixel bounds over ${box}`, null),
    figure(block.width, 'width of the bounds', `dark 0, yellow ${number(block.widest)}`, `Width of the pixel bounds, at most ${number(block.widest)}`, null));
  const first = figures.querySelector('img');
  first.addEventListener('load', () => { if (first.naturalWidth > 1.6 * first.naturalHeight) figures.classList.add('wide'); });
  const parts = [figures, element('p', {class: 'fine'}, `Pixel bounds over ${regression || !data.openBoxes[k] ? 'the box' : 'the box that stayed open:'} ${box}.`)];
  if (block.map) parts.push(element('h3', {}, 'Margin over both parameters'), mapLegend(k, block), chart(element('div', {class: 'chart'}), mapChart(block.map, block.worst)));
  const several = block.lines.length > 1;
  parts.push(element('h3', {}, `${regression ? `Output ${block.output}` : 'Margin'} over ${several ? 'each parameter' : 'the parameter'}`));
  if (several) parts.push(element('p', {class: 'fine'}, `The other parameters stay at ${regression ? 'this extreme' : 'the worst point'}: ${worst}.`));
  parts.push(lineLegend(block));
  block.lines.forEach((line, axis) => {
    const mark = !regression && data.counterexamples[k] ? {at: block.worst[axis], value: block.worstMargin} : null;
    parts.push(chart(element('div', {class: 'chart'}), lineChart(line, data.parameters[axis], mark)), lineTable(line, axis));
  });
  return parts;
}
function figure(source, name, note, alternative, fanOf) {
  const image = element('img', {src: source, alt: alternative});
  return element('li', {}, element('figure', {}, fanOf === null ? image : element('div', {class: 'frame'}, image, fan(fanOf)), element('figcaption', {}, name, note ? element('small', {}, note) : '')));
}
function key(kind, words) {
  return element('li', {}, element('span', {class: `key key-${kind}`, 'aria-hidden': 'true'}), words);
}
function lineLegend(block) {
  const open = !regression && block.lines.some((line) => line.boxes.some((box) => !(box[2] > 0)));
  return element('ul', {class: 'legend'}, key('sampled', 'sampled'), key('proved', regression ? 'proved range, box by box' : 'certified lower bound, box by box'), open ? key('open', 'not proved: bound at or below zero') : '');
}
function mapLegend(k, block) {
  const flat = block.map.margins.flat();
  return element('p', {class: 'fine'}, `Sampled margins, from ${number(Math.min(...flat))} (dark) to ${number(Math.max(...flat))} (yellow); the ring marks the ${data.counterexamples[k] ? 'counterexample' : 'lowest'}${block.map.boxes.length ? '; white lines are the boxes that were proved' : ''}. A cross marks a wrong answer.`);
}
function lineTable(line, axis) {
  const heads = regression ? ['from', 'to', 'proved lowest', 'proved highest'] : ['from', 'to', 'lower bound of the margin'];
  return element('details', {}, element('summary', {}, `${data.parameters[axis].name}: the bounds as a table`), element('div', {class: 'scroll'}, plainTable(heads, line.boxes.map((box) => box.map((value) => number(value, 5))))));
}
