'use strict';
/* The data, and how elements and numbers are made. Text goes in as text nodes only: nothing of a run is ever read as HTML. */
const data = JSON.parse(document.getElementById('data').textContent);
const regression = data.task === 'regression';
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
function element(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}
function drawn(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}
function byId(id) {
  return document.getElementById(id);
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return 'no bound';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replaceAll('-', '−');
  return String(Number(value.toPrecision(digits))).replace('-', '−');
}
function count(value) {
  return value.toLocaleString('en-US');
}
/* Rounded down, so that a share below all never reads as 100.00 %. */
function percent(part, whole) {
  return (Math.floor((10000 * part) / whole) / 100).toFixed(2) + ' %';
}
function point(values) {
  return values.map((value, k) => `${data.parameters[k].name.replace(/ \(.*/, '')} ${number(value, 6)}${unit(k)}`).join(', ');
}
function unit(k) {
  return {degrees: '°', pixels: ' px', percent: ' %'}[data.parameters[k].unit] || '';
}
function boxText(low, high) {
  return low.map((value, k) => `${data.parameters[k].name.replace(/ \(.*/, '')} ${number(value, 6)} to ${number(high[k], 6)}${unit(k)}`).join(', ');
}

/* A verdict: a shape of its own and its word, never a color alone. */
function verdictMark(word) {
  return element('span', {class: `verdict ${word}`}, drawn('svg', {class: 'mark', 'aria-hidden': 'true'}, drawn('use', {href: `#mark-${word}`})), word);
}
function plainTable(heads, rows) {
  return element('table', {class: 'plain-table'},
    element('thead', {}, element('tr', {}, heads.map((head, k) => element('th', {scope: 'col', class: k ? 'number' : ''}, head)))),
    element('tbody', {}, rows.map((row) => element('tr', {}, row.map((cell, k) => element('td', {class: k ? 'number' : ''}, cell))))));
}
