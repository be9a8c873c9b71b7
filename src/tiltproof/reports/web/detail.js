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
  /* the reader goes on where the last image stands, among the pictures or in the table */
  const button = (byId('pictures').hidden ? byId('table') : byId('grid')).querySelector(`[data-image="${current}"]`);
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
  const lower = below(data.margins[k], 5), upper = above(data.margins[k], 5), label = data.labels[k];
  const kept = data.keep && {
    certified: `Proved, by a margin of at least ${lower}, for every parameter of the range: the network ${data.keep} (label ${label}).`,
    falsified: `Broken by ${upper.replace('−', '')} at a parameter of the range. To prove was: the network ${data.keep} (label ${label}).`,
    misclassified: `Broken already without a transformation, with margin ${number(data.margins[k], 5)}. To prove was: the network ${data.keep} (label ${label}).`,
  }[data.verdictNames[data.verdicts[k]]];
  return kept || {
    certified: `Proved: label ${label} wins by at least ${lower} over every other class, for every parameter of the range.`,
    falsified: `Broken: a transformation of the range makes the network answer wrong; there label ${label} loses by at least ${upper.replace('−', '')}.`,
    unknown: `Not decided. ${data.margins[k] === null ? 'No lower bound of the margin was found.' : `The best lower bound of the margin is ${lower}.`}`,
    misclassified: `Wrong already without a transformation: label ${label} has margin ${number(data.margins[k], 5)}.`,
  }[data.verdictNames[data.verdicts[k]]];
}
const blockOf = (k) => (detailed.has(k) ? JSON.parse(byId(`detail-${k}`).textContent) : null);

function detailBody(k) {
  const block = blockOf(k);
  const parts = [element('p', {class: 'lead'}, regression ? rangeText(k) : said(k))];
  const broken = regression ? null : data.counterexamples[k];
  if (broken) parts.push(element('p', {class: 'lead'}, element('strong', {}, 'Counterexample: '), point(broken), block ? `. The network answers ${block.worstAnswer}.` : '.'));
  if (data.radii && data.verdictNames[data.verdicts[k]] !== 'misclassified') parts.push(element('p', {class: 'lead'}, element('strong', {}, 'Largest proved range: '), data.radii[k].map(([low, high], axis) => `${shortName(axis)} ${bounded(low, 5, true)} to ${bounded(high, 5, false)}${unit(axis)}`).join(', '), '.'));
  if (data.reasons[k]) parts.push(element('p', {class: 'lead'}, element('strong', {}, 'Why: '), data.reasons[k]));
  if (!regression && data.openBoxes[k] && data.parameters.length) parts.push(element('p', {class: 'lead'}, element('strong', {}, 'Stayed open: '), boxText(...data.openBoxes[k])));
  if (!block) {
    if (thumbnail(k)) parts.push(element('ul', {class: 'figures'}, figure(thumbnail(k), 'the image', '', `Image ${data.first + k}`, regression ? k : null)));
    parts.push(element('p', {class: 'fine'}, `Margins over the parameters are not part of this report for this image. To see them: tiltproof report DIR --images ${data.first + k}`));
  } else parts.push(...looked(k, block));
  if (regression) parts.push(element('h3', {}, 'Outputs'), element('div', {class: 'scroll'}, outputTable(k)));
  parts.push(element('p', {class: 'fine'}, `${count(data.boxes[k])} ${data.boxes[k] === 1 ? 'box' : 'boxes'}, ${number(data.seconds[k], 3)} s.`));
  return parts;
}

/* What is there for an image that was looked at: always its margins, and closely its pixel bounds too. */
function looked(k, block) {
  const parts = [turntable(k, block), block.lines.length ? lineLegend(block) : ''];
  if (block.lower) {
    const worst = point(block.worst), box = boxText(...block.box);
    const answers = regression ? ['', ''] : [`the network answers ${block.answer}`, `${worst ? `${worst}; ` : ''}margin ${number(block.worstMargin)}, answer ${block.worstAnswer}`];
    const figures = element('ul', {class: 'figures'},
      figure(block.image, 'the image', answers[0], 'The image, untransformed', regression ? k : null),
      figure(block.turned, regression ? 'transformed to its extreme' : data.counterexamples[k] ? 'the counterexample' : 'worst transformation found', regression ? worst : answers[1], `The image transformed with ${worst}`, null),
      figure(block.lower, 'lower pixel bound', 'no pixel is darker', `Lower pixel bounds over ${box}`, null),
      figure(block.upper, 'upper pixel bound', 'no pixel is brighter', `Upper pixel bounds over ${box}`, null),
      figure(block.width, 'width of the bounds', `dark 0, yellow ${above(block.widest, 3)}`, `Width of the pixel bounds, at most ${above(block.widest, 3)}`, null));
    const first = figures.querySelector('img');
    first.addEventListener('load', () => { if (first.naturalWidth > 1.6 * first.naturalHeight) figures.classList.add('wide'); });
    parts.push(element('h3', {}, 'Pixel bounds'), figures, box ? element('p', {class: 'fine'}, `Over ${regression || !data.openBoxes[k] ? 'the box' : 'the box that stayed open:'} ${box}.`) : '');
  } else parts.push(element('p', {class: 'fine'}, `Of this image the page has the sampled margins and the bound of the whole range. Boxes and pixel bounds: tiltproof report DIR --images ${data.first + k}`));
  block.lines.forEach((line, axis) => { if (line.boxes.length > 1) parts.push(lineTable(line, axis)); });
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
  const broken = !regression && block.lines.some((line) => line.sampled.some((value) => !(value > 0)));
  return element('ul', {class: 'legend'}, key('sampled', 'sampled'), key('proved', regression ? 'proved range, box by box' : 'proved lower bound, box by box'), open ? key('open', 'not proved') : '', broken ? key('broken', 'broken') : '');
}
function mapLegend(block) {
  const bounds = block.map.boxes.map((box) => box[4]).filter((value) => value > 0);
  const proved = bounds.length ? `Green: boxes over which the margin is proved, at least ${below(Math.min(...bounds))} (pale) to ${below(Math.max(...bounds))} (deep). ` : '';
  const open = block.map.boxes.some((box) => !(box[4] > 0)) ? 'Hatched: not proved. ' : '';
  return element('p', {class: 'fine'}, `${proved}${open}Red dots: sampled, and the network is wrong. Press or use the arrow keys to move the picture there.`);
}
function lineTable(line, axis) {
  const heads = regression ? ['from', 'to', 'proved lowest', 'proved highest'] : ['from', 'to', 'lower bound of the margin'];
  const cells = (box) => box.map((value, column) => (column === 2 ? below(value, 5) : column === 3 ? above(value, 5) : number(value, 7)));
  return element('details', {}, element('summary', {}, `${data.parameters[axis].name}: the bounds as a table`), element('div', {class: 'scroll'}, plainTable(heads, line.boxes.map(cells))));
}
