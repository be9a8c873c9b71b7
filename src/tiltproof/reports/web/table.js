/* The table: filtered and sorted over all images, drawn a page at a time, so that ten thousand rows cost what fifty do. */
const ROWS = 50;
const rows = Array.from({length: data.count}, (_, k) => k);
const state = {shown: rows, page: 0, sort: 'matters', descending: false};
/* What matters first: broken images, then undecided and wrong ones, then the smallest margins, if they were tightened; of a regression the widest ranges. */
const places = (() => {
  const rank = regression ? (k) => (data.widths[k] === null ? -Infinity : -data.widths[k]) : (k) => ['falsified', 'unknown', 'misclassified', 'certified'].indexOf(data.verdictNames[data.verdicts[k]]);
  const margin = (k) => (regression || !data.tightened || data.margins[k] === null ? 0 : data.margins[k]);
  const found = [];
  rows.slice().sort((a, b) => rank(a) - rank(b) || margin(a) - margin(b) || a - b).forEach((k, place) => { found[k] = place; });
  return found;
})();
function marginText(k) {
  const value = data.margins[k];
  return {certified: `≥ ${below(value)}`, unknown: value === null ? 'no bound' : `≥ ${below(value)}`, falsified: `≤ ${above(value)}`, misclassified: number(value)}[data.verdictNames[data.verdicts[k]]];
}
function rangeWords(k) {
  return `output ${number(data.prediction[k][0])}, certified ${below(data.lower[k][0])} to ${above(data.upper[k][0])}`;
}
const thumbnail = (k) => data.thumbnails[k];

const columns = regression ? [
  {key: 'image', name: 'Image', value: (k) => k},
  {key: 'thumbnail', name: 'Thumbnail', skip: data.thumbnails.length === 0},
  {key: 'prediction', name: 'Prediction', number: true, value: (k) => data.prediction[k][0], text: (k) => data.prediction[k].slice(0, 3).map((value) => number(value)).join(', ')},
  {key: 'lower', name: 'Lowest', number: true, value: (k) => data.lower[k][0], text: (k) => below(data.lower[k][0])},
  {key: 'upper', name: 'Highest', number: true, value: (k) => data.upper[k][0], text: (k) => above(data.upper[k][0])},
  {key: 'width', name: 'Proved width', number: true, value: (k) => data.widths[k], text: (k) => above(data.widths[k])},
  {key: 'reached', name: 'Reached width', number: true, wide: true, value: (k) => data.innerWidths[k], text: (k) => number(data.innerWidths[k])},
  {key: 'boxes', name: 'Boxes', number: true, wide: true, value: (k) => data.boxes[k], text: (k) => count(data.boxes[k])},
] : [
  {key: 'image', name: 'Image', value: (k) => k},
  {key: 'thumbnail', name: 'Thumbnail', skip: data.thumbnails.length === 0},
  {key: 'label', name: 'Label', number: true, wide: true, value: (k) => data.labels[k], text: (k) => String(data.labels[k])},
  {key: 'verdict', name: 'Verdict', value: (k) => data.verdicts[k], text: (k) => verdictMark(data.verdictNames[data.verdicts[k]])},
  /* how early a proof succeeded ranks nothing: without --tighten the column does not sort */
  {key: 'margin', name: data.tightened ? 'Margin' : 'Proved at least', number: true, value: data.tightened && ((k) => data.margins[k]), text: marginText},
  {key: 'boxes', name: 'Boxes', number: true, wide: true, value: (k) => data.boxes[k], text: (k) => count(data.boxes[k])},
  {key: 'seconds', name: 'Seconds', number: true, wide: true, value: (k) => data.seconds[k], text: (k) => number(data.seconds[k], 3)},
];
const visible = columns.filter((column) => !column.skip);

function heads() {
  const row = element('tr', {});
  for (const column of visible) {
    const class_ = `${column.number ? 'number' : ''} ${column.wide ? 'wide-only' : ''}`;
    if (!column.value) { row.append(element('th', {scope: 'col', class: class_}, element('span', {class: 'head'}, column.name))); continue; }
    const sorted = state.sort === column.key;
    row.append(element('th', {scope: 'col', class: class_, 'aria-sort': sorted ? (state.descending ? 'descending' : 'ascending') : 'none'},
      element('button', {type: 'button', 'data-sort': column.key, onclick: () => sortBy(column.key)}, column.name,
        element('span', {class: 'arrow', 'aria-hidden': 'true'}, sorted ? (state.descending ? '↓' : '↑') : ''))));
  }
  byId('table').querySelector('thead').replaceChildren(row);
}
function sortBy(key) {
  state.descending = state.sort === key ? !state.descending : false;
  state.sort = key;
  refresh();
  byId('table').querySelector(`[data-sort="${key}"]`).focus();
}

/* What the form says: verdicts that are ticked, a label, and ends of the margin (or of the width). */
function wanted() {
  const form = byId('filters');
  const ticked = new Set([...form.querySelectorAll('[name=verdict]:checked')].map((box) => Number(box.value)));
  const end = (name) => { const text = form.elements[name].value; return text === '' ? null : Number(text); };
  const label = form.elements.label ? form.elements.label.value : '';
  const least = end('least'), most = end('most');
  const property = regression ? data.widths : data.margins;
  const kind = regression ? data.complete : data.verdicts;
  return (k) => ticked.has(kind[k]) && (label === '' || data.labels[k] === Number(label)) &&
    (least === null || (property[k] !== null && property[k] >= least)) && (most === null || (property[k] === null ? !regression : property[k] <= most));
}
function refresh() {
  const value = state.sort === 'matters' ? (k) => places[k] : columns.find((column) => column.key === state.sort).value;
  const sign = state.descending ? -1 : 1;
  /* nothing proved sorts below every number */
  const rank = (k) => { const found = value(k); return found === null ? -Infinity : found; };
  state.shown = rows.filter(wanted()).sort((a, b) => { const x = rank(a), y = rank(b); return x === y ? a - b : x < y ? -sign : sign; });
  state.page = 0;
  heads();
  showPage();
  drawnPictures = PICTURES;
  showGrid();
}
function showPage() {
  const start = state.page * ROWS;
  const body = byId('table').querySelector('tbody');
  body.replaceChildren(...state.shown.slice(start, start + ROWS).map(tableRow));
  byId('found').textContent = state.shown.length === data.count ? `${count(data.count)} images` : `${count(state.shown.length)} of ${count(data.count)} images`;
  byId('all').hidden = state.shown.length === data.count;
  const pages = Math.max(1, Math.ceil(state.shown.length / ROWS));
  const step = (name, to) => element('button', {type: 'button', disabled: to < 0 || to >= pages || to === state.page, onclick: () => { state.page = to; showPage(); byId('images').scrollIntoView(); }}, name);
  byId('pages').replaceChildren(...(pages === 1 ? [] : [step('First', 0), step('Previous', state.page - 1), element('span', {}, `page ${count(state.page + 1)} of ${count(pages)}`), step('Next', state.page + 1), step('Last', pages - 1)]));
}
function tableRow(k) {
  const cells = visible.map((column) => {
    const class_ = `${column.number ? 'number' : ''} ${column.wide ? 'wide-only' : ''}`;
    if (column.key === 'image') return element('th', {scope: 'row'}, element('button', {type: 'button', class: 'open', 'data-image': k, 'aria-haspopup': 'dialog', 'aria-label': `Open image ${data.first + k}`}, String(data.first + k)));
    if (column.key === 'thumbnail') return element('td', {}, thumbnail(k) ? element('img', {class: 'thumbnail', src: thumbnail(k), alt: ''}) : '');
    return element('td', {class: class_}, column.text(k));
  });
  return element('tr', {'data-row': k}, cells);
}

function toggle(value, children, total) {
  return element('label', {class: 'toggle'}, element('input', {type: 'checkbox', name: 'verdict', value, checked: true}), children, element('span', {class: 'fine'}, count(total)));
}
function filters() {
  const form = byId('filters');
  const kinds = regression ? [[1, 'as tight as asked'], [0, 'budget ended']] : data.verdictNames.map((name, k) => [k, verdictMark(name)]);
  const totals = new Map();
  for (const kind of regression ? data.complete : data.verdicts) totals.set(kind, (totals.get(kind) || 0) + 1);
  const end = (name, word) => element('input', {type: 'number', step: 'any', name, 'aria-label': `${regression ? 'Width' : 'Margin'} ${word}`, placeholder: word});
  form.append(
    element('fieldset', {}, element('legend', {}, regression ? 'Range' : 'Verdict'), element('div', {class: 'toggles'}, kinds.map(([k, mark]) => toggle(k, mark, totals.get(k) || 0)))),
    regression ? '' : element('label', {class: 'field'}, element('span', {}, 'Label'), element('select', {name: 'label'}, element('option', {value: ''}, 'all'), [...new Set(data.labels)].sort((a, b) => a - b).map((label) => element('option', {value: label}, String(label))))),
    element('fieldset', {}, element('legend', {}, regression ? 'Proved width' : 'Margin'), element('div', {class: 'between'}, end('least', 'at least'), end('most', 'at most'))));
  form.addEventListener('input', refresh);
  form.addEventListener('reset', () => setTimeout(refresh));
  form.addEventListener('submit', (event) => event.preventDefault());
  const table = byId('table');
  table.addEventListener('click', (event) => {
    const row = event.target.closest('tbody tr');
    if (row) openImage(Number(row.dataset.row));
  });
  table.addEventListener('keydown', (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    const here = event.target.closest('.open');
    if (!step || !here) return;
    const all = [...table.querySelectorAll('.open')];
    const next = all[all.indexOf(here) + step];
    if (next) { event.preventDefault(); next.focus(); }
  });
}
