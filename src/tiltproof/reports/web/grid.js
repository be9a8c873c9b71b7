/* The images as pictures, framed by their verdicts, in the table's order: one stop of the Tab key, arrow keys walk, Enter opens. */
const PICTURES = 300;
let drawnPictures = PICTURES;
const kindOf = (k) => (regression ? (data.complete[k] ? 'certified' : 'unknown') : data.verdictNames[data.verdicts[k]]);

function showGrid() {
  const place = byId('grid'), some = state.shown.slice(0, drawnPictures);
  place.replaceChildren(...some.map((k, n) => {
    const kind = kindOf(k), text = regression ? rangeWords(k) : `label ${data.labels[k]}, ${kind}, margin ${marginText(k)}`;
    const picture = thumbnail(k) ? element('img', {src: thumbnail(k), alt: '', loading: 'lazy'}) : element('span', {class: 'number-only'}, String(data.first + k));
    return element('button', {type: 'button', class: `pick is-${kind}`, 'data-image': k, tabindex: n ? '-1' : '0', 'aria-haspopup': 'dialog', 'aria-label': `Image ${data.first + k}: ${text}`, title: `Image ${data.first + k}: ${text}`},
      picture, drawn('svg', {class: 'mark', 'aria-hidden': 'true'}, drawn('use', {href: `#mark-${kind}`})));
  }));
  const left = state.shown.length - some.length;
  byId('more').replaceChildren(...(left ? [element('button', {type: 'button', onclick: () => { drawnPictures += 2 * PICTURES; showGrid(); }}, `Show ${count(Math.min(left, 2 * PICTURES))} more`)] : []));
}
function walk(event) {
  const here = event.target.closest('.pick');
  if (!here) return;
  const all = [...byId('grid').children], at = all.indexOf(here);
  const columns = Math.max(1, all.findIndex((each) => each.offsetTop > all[0].offsetTop));
  const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: all.length - 1 - at}[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const next = all[at + step];
  if (!next) return;
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
/* Pictures or table: two views of the same images. */
function views() {
  const show = (pictures) => {
    byId('pictures').hidden = !pictures;
    byId('list').hidden = pictures;
  };
  const pictures = data.thumbnails.length > 0;
  const choice = (value, text, checked) => element('label', {class: 'toggle'}, element('input', {type: 'radio', name: 'view', value, checked, onchange: () => show(value === 'pictures')}), text);
  if (pictures) byId('views').append(element('legend', {class: 'hidden'}, 'Show the images as'), choice('pictures', 'Pictures', true), choice('table', 'Table', false));
  show(pictures);
  byId('grid').addEventListener('keydown', walk);
  byId('grid').addEventListener('click', (event) => {
    const pick = event.target.closest('.pick');
    if (pick) openImage(Number(pick.dataset.image));
  });
}
