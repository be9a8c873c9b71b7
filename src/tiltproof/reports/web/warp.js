/* The transformation of the run, in double precision and by the documented convention, so that a picture can turn in the page. */
const wave = (degrees) => { const angle = (degrees * Math.PI) / 180; return [Math.cos(angle), Math.sin(angle)]; };
const turn = (degrees) => { const [c, s] = wave(degrees); return [[c, s, 0], [-s, c, 0], [0, 0, 1]]; };
const diagonal = (x, y) => [[1 / x, 0, 0], [0, 1 / y, 0], [0, 0, 1]];
const grown = (percent) => 1 + percent / 100;
/* Inverse maps: the pixel (u, v), from the image's center, v upwards, shows the source at (x / w, y / w). */
const INVERSES = {
  R: turn, Roll: turn,
  Tu: (t) => [[1, 0, -t], [0, 1, 0], [0, 0, 1]],
  Tv: (t) => [[1, 0, 0], [0, 1, -t], [0, 0, 1]],
  Sc: (s) => diagonal(grown(s), grown(s)), Scu: (s) => diagonal(grown(s), 1), Scv: (s) => diagonal(1, grown(s)),
  Sh: (s) => [[1, -s / 100, 0], [0, 1, 0], [0, 0, 1]],
  Shv: (s) => [[1, 0, 0], [-s / 100, 1, 0], [0, 0, 1]],
  Yaw: (a, f) => { const [c, s] = wave(a); return [[c, 0, s * f], [0, 1, 0], [-s / f, 0, c]]; },
  Pitch: (a, f) => { const [c, s] = wave(a); return [[1, 0, 0], [0, c, s * f], [0, -s / f, c]]; },
};
/* Changes of a pixel's values before the clamp; colors by the W3C's filters, rows in thousandths. */
const LUMA = [213, 715, 72], CHROMA = [[-213, -715, 928], [143, 140, -283], [-787, 715, 72]];
function colored(pixel, same, across) {
  const luma = LUMA.reduce((sum, part, c) => sum + (part / 1000) * pixel[c], 0);
  return pixel.map((value, c) => luma + same * (value - luma) + across * CHROMA[c].reduce((sum, part, k) => sum + (part / 1000) * pixel[k], 0));
}
const CHANGES = {
  C: (pixel, percent) => pixel.map((value) => value * grown(percent)),
  B: (pixel, amount) => pixel.map((value) => value + amount),
  G: (pixel, percent) => pixel.map((value) => (value > 0 ? value ** grown(percent) : 0)),
  S: (pixel, percent) => colored(pixel, grown(percent), 0),
  H: (pixel, degrees) => colored(pixel, ...wave(degrees)),
};

function product(a, b) {
  return a.map((row) => [0, 1, 2].map((j) => row[0] * b[0][j] + row[1] * b[1][j] + row[2] * b[2][j]));
}
/* The index of a source pixel in one direction; -1 where black lies. */
function inside(index, size) {
  if (data.padding === 'zeros') return index >= 0 && index < size ? index : -1;
  if (data.padding === 'border' || size === 1) return Math.min(Math.max(index, 0), size - 1);
  const period = 2 * (size - 1), folded = ((index % period) + period) % period;
  return Math.min(folded, period - folded);
}

/* An image with values in [0, 1]: red, green and blue one after the other for each pixel. `scale`: how often it was reduced for this page. */
function pixelsOf(picture, full) {
  const canvas = element('canvas', {width: picture.naturalWidth, height: picture.naturalHeight});
  const context = canvas.getContext('2d', {willReadFrequently: true});
  context.drawImage(picture, 0, 0);
  const {data: bytes, width, height} = context.getImageData(0, 0, canvas.width, canvas.height);
  const values = new Float64Array(3 * width * height);
  for (let k = 0; k < width * height; k += 1) for (let c = 0; c < 3; c += 1) values[3 * k + c] = bytes[4 * k + c] / 255;
  return {values, width, height, scale: [full[1] / width, full[0] / height]};
}
/* Bilinear interpolation at the positions that the inverse map gives; lengths are in pixels of the full image. */
function resampled(source, matrix) {
  const {values, width, height, scale: [across, down]} = source;
  const found = new Float64Array(values.length);
  const middle = [(width - 1) / 2, (height - 1) / 2];
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1) {
      const u = (column - middle[0]) * across, v = (middle[1] - row) * down;
      const [x, y, w] = matrix.map((line) => line[0] * u + line[1] * v + line[2]);
      const depth = Math.max(w, 2 ** -20);
      const sourceColumn = x / depth / across + middle[0], sourceRow = middle[1] - y / depth / down;
      const left = Math.floor(sourceColumn), top = Math.floor(sourceRow);
      const right = sourceColumn - left, below = sourceRow - top;
      for (const [i, j, share] of [[left, top, (1 - right) * (1 - below)], [left + 1, top, right * (1 - below)], [left, top + 1, (1 - right) * below], [left + 1, top + 1, right * below]]) {
        const from = inside(i, width), line = inside(j, height);
        if (!share || from < 0 || line < 0) continue;
        for (let c = 0; c < 3; c += 1) found[3 * (row * width + column) + c] += share * values[3 * (line * width + from) + c];
      }
    }
  }
  return {...source, values: found};
}
function changed(source, steps, values) {
  const found = new Float64Array(source.values.length);
  for (let k = 0; k < found.length; k += 3) {
    let pixel = [source.values[k], source.values[k + 1], source.values[k + 2]];
    for (const [index, letter] of steps) pixel = CHANGES[letter](pixel, values[index]);
    for (let c = 0; c < 3; c += 1) found[k + c] = Math.min(Math.max(pixel[c], 0), 1);
  }
  return {...source, values: found};
}
/* The whole transformation with these parameters: a stage of moves is one interpolation, a stage of value changes one clamp. */
function transformed(source, values) {
  let image = source;
  for (const [kind, steps] of data.stages) {
    if (kind === 'spatial') image = resampled(image, steps.map(([index, letter, fixed]) => INVERSES[letter](values[index], fixed)).reduce(product));
    else image = changed(image, steps, values);
  }
  return image;
}
function paint(canvas, image) {
  const bytes = new ImageData(image.width, image.height);
  for (let k = 0; k < image.width * image.height; k += 1) {
    for (let c = 0; c < 3; c += 1) bytes.data[4 * k + c] = Math.round(255 * image.values[3 * k + c]);
    bytes.data[4 * k + 3] = 255;
  }
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext('2d').putImageData(bytes, 0, 0);
}
