/* Charts as SVG, drawn at the width there is and drawn again when it changes, so that text keeps its size on a phone. */
const observer = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const place = entry.target;
    const width = Math.round(entry.contentRect.width);
    if (width > 0 && width !== place.drawnWidth) redraw(place, width);
  }
});
function redraw(place, width) {
  place.drawnWidth = width;
  place.replaceChildren(place.drawing(width));
}
function chart(place, drawing) {
  place.drawing = drawing;
  place.drawnWidth = 0;
  observer.observe(place);
  return place;
}

function ticks(low, high, most) {
  const rough = (high - low || 1) / Math.max(most - 1, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * (1 - 1e-9));
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

/* Axes: a scale from numbers to pixels, grid lines and labels. */
function axes(width, height, spans, names, label) {
  const left = 58, right = 24, top = 26, bottom = 48;
  const {low, high, floor, ceiling} = spans;
  const x = (value) => left + ((value - low) / (high - low || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((Math.min(Math.max(value, floor), ceiling) - floor) / (ceiling - floor || 1)) * (height - top - bottom);
  const svg = drawn('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': label});
  for (const tick of spans.up || ticks(floor, ceiling, 6)) {
    svg.append(drawn('line', {class: 'grid', x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
      drawn('text', {x: left - 8, y: y(tick) + 4, 'text-anchor': 'end'}, (spans.tick || number)(tick)));
  }
  for (const tick of spans.across || ticks(low, high, width < 480 ? 5 : 9)) {
    svg.append(drawn('line', {class: 'axis', x1: x(tick), x2: x(tick), y1: height - bottom, y2: height - bottom + 5}),
      drawn('text', {x: x(tick), y: height - bottom + 19, 'text-anchor': 'middle'}, (spans.acrossTick || number)(tick)));
  }
  svg.append(drawn('line', {class: 'axis', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}),
    drawn('text', {class: 'name', x: (left + width - right) / 2, y: height - 8, 'text-anchor': 'middle'}, names[0]),
    drawn('text', {class: 'name', x: 4, y: 14}, names[1]));
  return {svg, x, y, left, right: width - right, top, bottom: height - bottom};
}
function path(points) {
  return points.map(([x, y], k) => `${k ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
}

/* A vertical hair under the pointer, and the numbers it meets. */
function readout(plot, low, high, words) {
  const hair = drawn('line', {class: 'hair', y1: plot.top, y2: plot.bottom, visibility: 'hidden'});
  const text = drawn('text', {class: 'readout', x: plot.right, y: 14, 'text-anchor': 'end'});
  plot.svg.append(hair, text);
  plot.svg.addEventListener('pointermove', (event) => {
    const box = plot.svg.getBoundingClientRect();
    const at = Math.min(Math.max(event.clientX - box.left, plot.left), plot.right);
    const value = low + ((at - plot.left) / (plot.right - plot.left)) * (high - low);
    hair.setAttribute('x1', at);
    hair.setAttribute('x2', at);
    hair.setAttribute('visibility', 'visible');
    text.textContent = words(value);
  });
  plot.svg.addEventListener('pointerleave', () => {
    hair.setAttribute('visibility', 'hidden');
    text.textContent = '';
  });
}

/* The ends of a nested range in its unit: ±15°, or −5 to 15°. */
function ends(low, high, k) {
  return low === -high ? `±${number(high)}${unit(k)}` : `${number(low)} to ${number(high)}${unit(k)}`;
}
/* Certified share over nested ranges, as steps: what is proved for a range holds for every range inside it, and nothing is known
   between two ranges but that. At most so many are certified: those without a counterexample in the range before. */
function curveSteps() {
  const single = data.parameters.length === 1, points = data.curve;
  const place = (each, up) => (single ? (up ? each.high[0] : each.low[0]) : each.share);
  const proved = [], possible = [];
  for (const up of single ? [false, true] : [true]) {
    for (let k = 1; k < points.length; k += 1) {
      const span = [place(points[k - 1], up), place(points[k], up)].sort((a, b) => a - b);
      if (span[0] === span[1]) continue;
      proved.push([...span, (100 * points[k].counts[0]) / data.count]);
      possible.push([...span, (100 * (points[k - 1].counts[0] + points[k - 1].counts[2])) / data.count]);
    }
  }
  const by = (a, b) => a[0] - b[0];
  return {proved: proved.sort(by), possible: possible.sort(by)};
}
/* Of values in order of importance those that are this far from all before them. */
function spaced(values, room) {
  const kept = [];
  for (const value of values) if (kept.every((other) => Math.abs(other - value) >= room)) kept.push(value);
  return kept;
}
function outline(steps, plot) {
  return path(steps.flatMap(([from, to, level]) => [[plot.x(from), plot.y(level)], [plot.x(to), plot.y(level)]]));
}
function curveChart(width) {
  const {proved, possible} = curveSteps(), points = data.curve, last = points[points.length - 1];
  const single = data.parameters.length === 1;
  const [low, high] = single ? [last.low[0], last.high[0]] : [0, 1];
  const least = Math.min(...proved.map((each) => each[2]));
  const floor = least > 60 ? Math.floor(least / 10 - 0.3) * 10 : 0;
  const narrow = width < 480;
  const tried = single ? points.flatMap((each) => [each.low[0], each.high[0]]) : points.map((each) => each.share);
  const across = spaced([low, high, ...tried.sort((a, b) => Math.min(b - low, high - b) - Math.min(a - low, high - a)).reverse()], ((narrow ? 44 : 52) / (width - 82)) * (high - low));
  const name = single ? data.parameters[0].name : 'share of every parameter\u2019s range';
  const spans = {low, high, floor, ceiling: 100, across, tick: (value) => `${number(value)} %`, acrossTick: single ? (value) => number(value) + unit(0) : (value) => `${number(100 * value)} %`};
  const plot = axes(width, 280, spans, [name, floor ? `share of images; the axis begins at ${floor} %` : 'share of images'], `Certified share in steps, ${percent(last.counts[0], data.count)} for the full range ${last.transform}`);
  plot.svg.append(drawn('path', {class: 'proved-wash', d: `${outline(proved, plot)}L${plot.right} ${plot.bottom}L${plot.left} ${plot.bottom}Z`}));
  plot.svg.append(drawn('path', {class: 'unfalsified', d: outline(possible, plot)}), drawn('path', {class: 'proved', d: outline(proved, plot)}));
  readout(plot, low, high, (value) => {
    const inside = ([from, to]) => from <= value && value <= to;
    const each = points.find((one) => (single ? one.low[0] <= value && value <= one.high[0] : value <= one.share)) || last;
    const ranges = each.low.map((from, k) => ends(from, each.high[k], k)).join(', ');
    const top = possible.find(inside);
    return `${ranges}: ${percent(each.counts[0], data.count)} certified${top ? `, ${number(top[2])} % at most` : ''}`;
  });
  return plot.svg;
}

/* Sampled values along one parameter and what is proved for each box: a lower bound, or for regression both ends. The strip below
   says it again: green proved, red broken, hatched neither. `on.ready` gets the plot with its cursor, `on.picked` where one pressed. */
function lineChart(line, parameter, mark, on) {
  const values = line.sampled.filter((value) => value !== null);
  const bounds = line.boxes.flatMap((box) => box.slice(2)).filter((value) => value !== null);
  let least = Math.min(...values), most = Math.max(...values);
  if (!regression) { least = Math.min(least, 0); most = Math.max(most, 0); }
  const spread = most - least || 1;
  /* a bound far away is drawn at the edge, so that the rest stays legible */
  const beyond = (regression ? 1 : 0.3) * spread;
  const floor = Math.max(Math.min(least, ...bounds), least - beyond) - 0.06 * spread;
  const ceiling = (regression ? Math.min(Math.max(most, ...bounds), most + spread) : most) + 0.06 * spread;
  const last = line.sampled.length - 1, spacing = (parameter.high - parameter.low) / last;
  const at = (k) => parameter.low + spacing * k;
  const quantity = regression ? 'output' : 'margin';
  return (width) => {
    const across = spaced([parameter.low, parameter.high, ...ticks(parameter.low, parameter.high, width < 480 ? 5 : 9)], (44 / (width - 82)) * (parameter.high - parameter.low));
    const plot = axes(width, width < 480 ? 230 : 260, {low: parameter.low, high: parameter.high, floor, ceiling, across}, [parameter.name, quantity], `${quantity} over ${parameter.name}: sampled ${number(least)} to ${number(most)}`);
    const strip = (kind, from, to) => drawn('rect', {class: `strip-${kind}`, x: plot.x(from), width: Math.max(plot.x(to) - plot.x(from), 0.5), y: plot.bottom - 7, height: 7});
    const strips = [strip('unknown', parameter.low, parameter.high)];
    for (const [low, high, lower, upper] of line.boxes) {
      const left = plot.x(low), right = plot.x(high);
      const proved = regression ? lower !== null && upper !== null : lower > 0;
      const both = regression ? [lower === null ? floor : lower, upper === null ? ceiling : upper] : [lower === null ? floor : lower, 0];
      const [a, b] = both.map(plot.y);
      plot.svg.append(drawn('rect', {class: proved ? 'proved-wash' : 'open-wash', x: left, width: Math.max(right - left, 0.5), y: Math.min(a, b), height: Math.abs(a - b)}));
      for (const level of regression ? [a, b] : [a]) plot.svg.append(drawn('path', {class: proved ? 'proved' : 'open-step', d: path([[left, level], [right, level]])}));
      if (proved) strips.push(strip('certified', low, high));
    }
    if (line.proved) strips.push(strip('certified', ...line.proved));
    if (!regression) {
      line.sampled.forEach((value, k) => {
        if (value !== null && value > 0) return;
        const from = Math.max(at(k) - spacing / 2, parameter.low), to = Math.min(at(k) + spacing / 2, parameter.high);
        plot.svg.append(drawn('rect', {class: 'broken-wash', x: plot.x(from), width: plot.x(to) - plot.x(from), y: plot.top, height: plot.bottom - plot.top}));
        strips.push(strip('falsified', from, to));
      });
    }
    plot.svg.append(...strips);
    if (!regression) plot.svg.append(drawn('line', {class: 'zero', x1: plot.left, x2: plot.right, y1: plot.y(0), y2: plot.y(0)}));
    plot.svg.append(drawn('path', {class: 'sampled', d: path(line.sampled.map((value, k) => [plot.x(at(k)), plot.y(value === null ? floor : value)]))}));
    if (mark) {
      const x = plot.x(mark.at), y = plot.y(mark.value);
      plot.svg.append(drawn('path', {class: 'cross', d: `M${x - 6} ${y - 6}l12 12m0 -12l-12 12`}, drawn('title', {}, 'counterexample')));
    }
    const hair = drawn('line', {class: 'hair', y1: plot.top, y2: plot.bottom}), dot = drawn('circle', {class: 'dot', r: 5.5});
    plot.svg.append(hair, dot);
    plot.cursor = (all, axis) => {
      const value = all[axis], place = Math.min(Math.max((value - parameter.low) / spacing, 0), last);
      const before = line.sampled[Math.floor(place)], after = line.sampled[Math.ceil(place)];
      fill(hair, {x1: plot.x(value), x2: plot.x(value)}, []);
      fill(dot, {cx: plot.x(value), cy: plot.y(before === null || after === null ? floor : before + (after - before) * (place % 1))}, []);
    };
    pressed(plot.svg, (x) => on.picked(Math.min(Math.max(parameter.low + ((x - plot.left) / (plot.right - plot.left)) * (parameter.high - parameter.low), parameter.low), parameter.high)));
    on.ready(plot);
    return plot.svg;
  };
}
/* Calls `picked` with the place in the drawing where a pointer is pressed or dragged. */
function pressed(svg, picked) {
  const tell = (event) => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    picked((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
  };
  svg.addEventListener('pointerdown', (event) => { svg.setPointerCapture(event.pointerId); tell(event); });
  svg.addEventListener('pointermove', (event) => { if (event.buttons) tell(event); });
}

/* The tiling over two parameters: each box in green by its proved bound, hatched where nothing was proved, and a red dot at every sample
   that the network answers wrong. Arrow keys and the pointer move the ring. */
function mapChart(map, on) {
  const [first, second] = data.parameters;
  const bounds = map.boxes.map((box) => box[4]).filter((value) => value > 0);
  const most = Math.max(...bounds, 1e-9);
  return (full) => {
    const width = Math.min(full, 600);
    const plot = axes(width, Math.round(width * 0.72) + 40, {low: first.low, high: first.high, floor: second.low, ceiling: second.high}, [first.name, second.name], `Boxes over ${first.name} and ${second.name}; arrow keys move the picture`);
    fill(plot.svg, {width, tabindex: '0', role: 'application'}, []);
    plot.svg.append(drawn('rect', {class: map.boxes.length ? 'map-ground' : 'strip-unknown', x: plot.left, y: plot.top, width: plot.right - plot.left, height: plot.bottom - plot.top}));
    for (const [a, b, c, d, bound] of map.boxes) {
      const box = drawn('rect', {class: bound > 0 ? 'tile-proved' : 'tile-open', x: plot.x(a), y: plot.y(d), width: plot.x(c) - plot.x(a), height: plot.y(b) - plot.y(d)}, drawn('title', {}, bound > 0 ? `proved: margin at least ${below(bound)}` : 'not proved'));
      if (bound > 0) box.style.fillOpacity = 0.3 + 0.65 * Math.sqrt(bound / most);
      plot.svg.append(box);
    }
    const steps = map.margins.length - 1;
    map.margins.forEach((row, j) => row.forEach((value, k) => {
      if (value > 0) return;
      plot.svg.append(drawn('circle', {class: 'broken-dot', r: 3.2, cx: plot.left + (k / steps) * (plot.right - plot.left), cy: plot.bottom - (j / steps) * (plot.bottom - plot.top)}, drawn('title', {}, `margin ${number(value)}`)));
    }));
    const rings = ['ring', 'ring-in'].map((kind) => drawn('circle', {class: kind, r: kind === 'ring' ? 7 : 8.6}));
    plot.svg.append(...rings);
    let now = [first.low, second.low];
    plot.cursor = (values) => { now = values.slice(); for (const ring of rings) fill(ring, {cx: plot.x(now[0]), cy: plot.y(now[1])}, []); };
    const clamp = (value, {low, high}) => Math.min(Math.max(value, low), high);
    pressed(plot.svg, (x, y) => on.picked(clamp(first.low + ((x - plot.left) / (plot.right - plot.left)) * (first.high - first.low), first), clamp(second.low + ((plot.bottom - y) / (plot.bottom - plot.top)) * (second.high - second.low), second)));
    plot.svg.addEventListener('keydown', (event) => {
      const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1]}[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      on.picked(...[first, second].map((each, k) => clamp(now[k] + (move[k] * (each.high - each.low)) / steps, each)));
    });
    on.ready(plot);
    return plot.svg;
  };
}
