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

/* Certified and unfalsified share over nested ranges. */
function curveChart(width) {
  const points = data.curve, all = data.count;
  const proved = points.map((each) => [each.share, (100 * each.counts[0]) / all]);
  const unbroken = points.map((each) => [each.share, (100 * (each.counts[0] + each.counts[2])) / all]);
  const least = Math.min(...proved.map((each) => each[1]));
  const floor = least > 60 ? Math.floor(least / 10 - 0.3) * 10 : 0;
  const spans = {low: 0, high: 1, floor, ceiling: 100, across: width < 480 ? [0, 0.25, 0.5, 0.75, 1] : points.map((each) => each.share), tick: (value) => `${number(value)} %`, acrossTick: (value) => `${number(100 * value)} %`};
  const last = points[points.length - 1];
  const plot = axes(width, 320, spans, [width < 480 ? 'share of the full range' : 'size of the transformation, share of the full range', floor ? `share of images; the axis begins at ${floor} %` : 'share of images'], `Certified share falls from ${percent(points[0].counts[0], all)} to ${percent(last.counts[0], all)} at the full range ${last.transform}`);
  const place = (each) => [plot.x(each[0]), plot.y(each[1])];
  const area = `${path(proved.map(place))}L${plot.x(1)} ${plot.bottom}L${plot.x(proved[0][0])} ${plot.bottom}Z`;
  /* an area is read from zero, so it is drawn only where the axis begins there */
  if (floor === 0) plot.svg.append(drawn('path', {class: 'proved-wash', d: area}));
  plot.svg.append(drawn('path', {class: 'unfalsified', d: path(unbroken.map(place))}), drawn('path', {class: 'proved', d: path(proved.map(place))}));
  proved.forEach((each, k) => {
    const [x, y] = place(each);
    plot.svg.append(drawn('circle', {class: 'dot', cx: x, cy: y, r: 6}, drawn('title', {}, `${points[k].transform}: ${percent(points[k].counts[0], all)} certified`)));
  });
  return plot.svg;
}

/* Sampled values along one parameter and what is proved for each box: a lower bound, or for regression both ends. */
function lineChart(line, parameter, mark) {
  const values = line.sampled.filter((value) => value !== null);
  const bounds = line.boxes.flatMap((box) => box.slice(2)).filter((value) => value !== null);
  let least = Math.min(...values), most = Math.max(...values);
  if (!regression) { least = Math.min(least, 0); most = Math.max(most, 0); }
  const spread = most - least || 1;
  /* a bound far away is drawn at the edge, so that the rest stays legible */
  const beyond = (regression ? 1 : 0.3) * spread;
  const floor = Math.max(Math.min(least, ...bounds), least - beyond) - 0.06 * spread;
  const ceiling = (regression ? Math.min(Math.max(most, ...bounds), most + spread) : most) + 0.06 * spread;
  const at = (k) => parameter.low + ((parameter.high - parameter.low) * k) / (line.sampled.length - 1);
  const quantity = regression ? 'output' : 'margin';
  return (width) => {
    const plot = axes(width, 270, {low: parameter.low, high: parameter.high, floor, ceiling}, [parameter.name, quantity], `${quantity} over ${parameter.name}: sampled ${number(least)} to ${number(most)}`);
    for (const [low, high, lower, upper] of line.boxes) {
      const left = plot.x(low), right = plot.x(high);
      const proved = regression || lower > 0;
      const ends = regression ? [lower === null ? floor : lower, upper === null ? ceiling : upper] : [lower === null ? floor : lower, 0];
      const [a, b] = ends.map(plot.y);
      plot.svg.append(drawn('rect', {class: proved ? 'proved-wash' : 'open-wash', x: left, width: Math.max(right - left, 0.5), y: Math.min(a, b), height: Math.abs(a - b)}));
      for (const level of regression ? [a, b] : [a]) plot.svg.append(drawn('path', {class: proved ? 'proved' : 'open-step', d: path([[left, level], [right, level]])}));
    }
    if (!regression) plot.svg.append(drawn('line', {class: 'zero', x1: plot.left, x2: plot.right, y1: plot.y(0), y2: plot.y(0)}));
    plot.svg.append(drawn('path', {class: 'sampled', d: path(line.sampled.map((value, k) => [plot.x(at(k)), plot.y(value === null ? floor : value)]))}));
    if (mark) {
      const x = plot.x(mark.at), y = plot.y(mark.value);
      plot.svg.append(drawn('path', {class: 'cross', d: `M${x - 6} ${y - 6}l12 12m0 -12l-12 12`}, drawn('title', {}, 'counterexample')));
    }
    readout(plot, parameter.low, parameter.high, (value) => {
      const k = Math.round(((value - parameter.low) / (parameter.high - parameter.low)) * (line.sampled.length - 1));
      const box = line.boxes.find((each) => each[0] <= value && value <= each[1]);
      const bound = box ? (regression ? `, proved ${number(box[2])} to ${number(box[3])}` : `, bound ${number(box[2])}`) : '';
      return `at ${number(at(k))}: ${number(line.sampled[k])}${bound}`;
    });
    return plot.svg;
  };
}

const SCALE = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
function shade(share) {
  const place = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1);
  const k = Math.min(Math.floor(place), SCALE.length - 2);
  return `rgb(${SCALE[k].map((from, c) => Math.round(from + (place - k) * (SCALE[k + 1][c] - from))).join(' ')})`;
}

/* Margins over two parameters; a cell whose margin is not positive is crossed out, and the boxes of the tiling are outlined. */
function mapChart(map, worst) {
  const flat = map.margins.flat().filter((value) => value !== null);
  const least = Math.min(...flat), most = Math.max(...flat);
  const [first, second] = data.parameters;
  return (full) => {
    const width = Math.min(full, 640);
    const spans = {low: first.low, high: first.high, floor: second.low, ceiling: second.high};
    const plot = axes(width, Math.round(width * 0.72) + 40, spans, [first.name, second.name], `Sampled margin over ${first.name} and ${second.name}, from ${number(least)} to ${number(most)}`);
    plot.svg.setAttribute('width', width);
    const rows = map.margins.length, columns = map.margins[0].length;
    const wide = (plot.right - plot.left) / (columns - 1), tall = (plot.bottom - plot.top) / (rows - 1);
    map.margins.forEach((row, j) => row.forEach((value, k) => {
      /* a cell lies about its sample; those at the ends of the range are half cells */
      const x = plot.left + k * wide, y = plot.bottom - j * tall;
      const from = Math.max(x - wide / 2, plot.left), to = Math.min(x + wide / 2, plot.right);
      const above = Math.max(y - tall / 2, plot.top), below = Math.min(y + tall / 2, plot.bottom);
      plot.svg.append(drawn('rect', {x: from, y: above, width: to - from + 0.4, height: below - above + 0.4, fill: shade((value - least) / (most - least || 1))}, drawn('title', {}, `margin ${number(value)}`)));
      if (!(value > 0)) plot.svg.append(drawn('path', {class: 'broken', d: `M${(from + to) / 2 - 4} ${(above + below) / 2 - 4}l8 8m0 -8l-8 8`}));
    }));
    for (const [a, b, c, d] of map.boxes) plot.svg.append(drawn('rect', {class: 'tile-edge', x: plot.x(a), y: plot.y(d), width: plot.x(c) - plot.x(a), height: plot.y(b) - plot.y(d)}));
    for (const kind of ['ring', 'ring-in']) plot.svg.append(drawn('circle', {class: kind, cx: plot.x(worst[0]), cy: plot.y(worst[1]), r: kind === 'ring' ? 7 : 8.6}));
    return plot.svg;
  };
}
