/* A picture that turns over its margins: a slider, the picture at that parameter, and what is proved and sampled there. */
const SWEEP = 7000; /* milliseconds from one end to the other */
const STILL = matchMedia('(prefers-reduced-motion: reduce)').matches;
const shortName = (axis) => data.parameters[axis].name.replace(/ \(.*/, '');

/* What is known at a parameter: the box that contains it, and the nearest sample. */
function known(line, axis, value) {
  const {low, high} = data.parameters[axis];
  const nearest = Math.round(((value - low) / (high - low)) * (line.sampled.length - 1));
  const box = line.boxes.find((each) => each[0] <= value && value <= each[1]) || null;
  return {at: low + ((high - low) * nearest) / (line.sampled.length - 1), sampled: line.sampled[nearest], answer: line.answers ? line.answers[nearest] : null, box, within: Boolean(line.proved) && line.proved[0] <= value && value <= line.proved[1]};
}
/* The same on the map of two parameters. */
function knownOnMap(map, values) {
  const [column, row] = [0, 1].map((axis) => {
    const {low, high} = data.parameters[axis];
    return Math.round(((values[axis] - low) / (high - low)) * (map.margins.length - 1));
  });
  const box = map.boxes.find(([a, b, c, d]) => a <= values[0] && values[0] <= c && b <= values[1] && values[1] <= d);
  return {at: null, sampled: map.margins[row][column], answer: null, box: box ? [null, null, box[4]] : null};
}
function stateOf(found) {
  if (regression) return found.box && found.box[2] !== null && found.box[3] !== null ? 'certified' : 'unknown';
  if (found.within || (found.box && found.box[2] > 0)) return 'certified';
  return found.sampled !== null && found.sampled > 0 ? 'unknown' : 'falsified';
}
function words(found, axis) {
  const at = found.at === null ? 'there' : `at ${number(found.at, 4)}${unit(axis)}`;
  if (regression) return [`output ${number(found.sampled)} ${at}`, found.box ? `proved: ${below(found.box[2])} to ${above(found.box[3])}` : 'no proved range'];
  const answer = found.answer === null ? '' : `, answer ${found.answer}`;
  const sample = `margin ${number(found.sampled)} ${at}${answer}`;
  return [sample, {certified: found.box && found.box[2] > 0 ? `proved: at least ${below(found.box[2])}` : 'proved', falsified: 'broken', unknown: 'not proved here'}[stateOf(found)]];
}

/* An image as it is and at its worst. */
function stills(k, block) {
  const still = (picture, name, note) => element('figure', {}, element('img', {src: picture, alt: ''}), element('figcaption', {}, name, regression ? '' : element('small', {}, `answers ${note}`)));
  const worst = regression ? 'at its extreme' : data.counterexamples[k] ? 'counterexample' : 'at its worst';
  return element('div', {class: 'stills'}, still(block.image || thumbnail(k), 'as it is', block.answer), block.turned ? still(block.turned, worst, block.worstAnswer) : '');
}
/* `options.play`: turn once when it appears; `options.compact`: the charts of the other parameters are not drawn. */
function turntable(k, block, options = {}) {
  if (!block.lines.length) return stills(k, block);
  const values = block.worst.slice();
  let axis = 0, source = null, strip = null, plot = null, playing = 0, onMap = false, mapPlot = null;
  const canvas = element('canvas', {class: 'turning', role: 'img', width: 1, height: 1});
  const frame = element('div', {class: 'frame turning-frame'}, canvas);
  const slider = element('input', {type: 'range', class: 'slider', oninput: () => { stop(); place(Number(slider.value)); }});
  const button = element('button', {type: 'button', class: 'play', onclick: () => { if (playing) stop(); else play(false); }});
  const said = element('output', {class: 'said'});
  const chartPlace = element('div', {class: 'chart ribbon'});
  const body = element('div', {class: data.size[1] > 1.6 * data.size[0] ? 'turntable wide' : 'turntable'});

  function place(value, second = null) {
    onMap = second !== null;
    if (!onMap) for (let other = 0; other < values.length; other += 1) values[other] = block.worst[other];
    const clamped = (each, k) => Math.min(Math.max(each, data.parameters[k].low), data.parameters[k].high);
    if (onMap) { values[0] = clamped(value, 0); values[1] = clamped(second, 1); } else values[axis] = clamped(value, axis);
    update();
  }
  function update() {
    const found = onMap ? knownOnMap(block.map, values) : known(block.lines[axis], axis, values[axis]);
    const state = stateOf(found), [sample, proved] = words(found, axis);
    const where = onMap ? point(values) : `${shortName(axis)} ${number(values[axis], 4)}${unit(axis)}`;
    frame.className = `frame turning-frame is-${state}`;
    slider.value = values[axis];
    slider.setAttribute('aria-valuetext', `${where}; ${sample}; ${proved}`);
    said.replaceChildren(element('strong', {}, where), element('span', {class: `state is-${state}`}, proved), element('span', {class: 'fine'}, sample));
    canvas.setAttribute('aria-label', `Image ${data.first + k} with ${point(values)}`);
    draw(found);
    for (const each of [plot, mapPlot]) if (each) each.cursor(values, axis);
  }
  function draw(found) {
    if (source) paint(canvas, transformed(source, values));
    else if (strip) {
      const {frames} = block.lines[axis], {low, high} = data.parameters[axis];
      const width = strip.naturalWidth / frames.count, shown = Math.round(((values[axis] - low) / (high - low)) * (frames.count - 1));
      canvas.width = width; canvas.height = strip.naturalHeight;
      canvas.getContext('2d').drawImage(strip, -shown * width, 0);
    }
    if (regression && block.output === 0) {
      const old = frame.querySelector('svg');
      if (old) old.remove();
      frame.append(fan(k, found.sampled));
    }
  }
  function load() {
    const frames = block.lines[axis].frames;
    if (!data.stages && !frames) return;
    const picture = new Image();
    picture.addEventListener('load', () => {
      if (data.stages) { source = pixelsOf(picture, data.size); if (source.width > 100) frame.classList.add('smooth'); } else strip = picture;
      update();
    });
    picture.setAttribute('src', data.stages ? block.image || thumbnail(k) : frames.source);
  }
  function play(once) {
    const {low, high} = data.parameters[axis], half = high - low;
    const from = once ? values[axis] - low : Math.min(values[axis] - low, half * 0.999);
    const begin = performance.now();
    button.replaceChildren('❚❚ Pause');
    const step = (now) => {
      const gone = from + (Math.max(now - begin, 0) / SWEEP) * half, turned = gone % (2 * half);
      if (once && gone - from >= 2 * half) { stop(); place(block.worst[axis]); return; }
      if (!canvas.isConnected) { stop(); return; }
      place(low + (turned <= half ? turned : 2 * half - turned));
      playing = requestAnimationFrame(step);
    };
    playing = requestAnimationFrame(step);
  }
  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    button.replaceChildren('▶ Turn');
  }
  function choose(chosen) {
    axis = chosen;
    const {low, high, name} = data.parameters[axis];
    for (const [key, value] of [['min', low], ['max', high], ['step', (high - low) / (4 * (block.lines[axis].sampled.length - 1))]]) slider.setAttribute(key, value);
    slider.setAttribute('aria-label', `${name}, image ${data.first + k}`);
    const mark = !regression && data.counterexamples[k] ? {at: block.worst[axis], value: block.worstMargin} : null;
    chart(chartPlace, lineChart(block.lines[axis], data.parameters[axis], mark, {ready: (made) => { plot = made; plot.cursor(values, axis); }, picked: (value) => { stop(); place(value); }}));
    redraw(chartPlace, Math.round(chartPlace.clientWidth) || 320);
    place(block.worst[axis]);
    if (!data.stages) load();
  }
  const tabs = data.parameters.length < 2 ? '' : element('fieldset', {class: 'axes'}, element('legend', {class: 'hidden'}, 'Parameter that the slider moves'),
    data.parameters.map((_, each) => element('label', {class: 'toggle'}, element('input', {type: 'radio', name: `axis-${k}-${options.play ? 'first' : 'more'}`, checked: each === 0, onchange: () => { stop(); choose(each); }}), shortName(each))));
  const shown = data.stages || block.lines[0].frames ? frame : element('img', {src: block.turned, alt: `Image ${data.first + k} with ${point(block.worst)}`});
  body.append(element('div', {class: 'turning-side'}, shown, options.play && block.turned ? stills(k, block) : ''), element('div', {class: 'turning-main'}, tabs, chartPlace, element('div', {class: 'under'}, slider), element('div', {class: 'controls'}, button, said)));
  if (values.length > 1) body.append(element('p', {class: 'fine'}, `The slider moves one parameter; the others stay at ${point(block.worst)}.`));
  if (data.noise) body.append(element('p', {class: 'fine'}, `What is proved includes every change of pixels by up to ${number(data.noise)}; samples and the turning picture are without it.`));
  if (block.map) {
    const place2 = element('div', {class: 'chart map'});
    body.append(element('h3', {}, 'Both parameters'), mapLegend(block), chart(place2, mapChart(block.map, {ready: (made) => { mapPlot = made; mapPlot.cursor(values, axis); }, picked: (first, second) => { stop(); place(first, second); }})));
  }
  stop();
  /* charts need their place in the page before they know their width */
  requestAnimationFrame(() => { choose(0); load(); if (options.play && !STILL) setTimeout(() => { if (!playing && canvas.isConnected) play(true); }, 600); });
  return body;
}
