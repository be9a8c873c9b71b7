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
  if (size >= 1e6 || size < 1e-4) return Number(value.toPrecision(digits)).toExponential().replaceAll('-', '−');
  return String(Number(value.toPrecision(digits))).replace('-', '−');
}
/* Proved numbers are rounded to the safe side: a lower bound down, an upper bound up. */
function bounded(value, digits, up) {
  if (value === null || value === undefined || value === 0) return number(value);
  const places = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
  let whole = (up ? Math.ceil : Math.floor)(value * 10 ** places);
  const shown = () => Number(`${whole}e${-places}`);
  if (up ? shown() < value : shown() > value) whole += up ? 1 : -1;
  return number(shown(), digits + 1);
}
const below = (value, digits = 4) => bounded(value, digits, false);
const above = (value, digits = 4) => bounded(value, digits, true);
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
