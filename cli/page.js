/* Tools of kvcanary's pages, which the build puts inside them (cmake/embed.cmake). */
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
/* el("td.n", {title: "x"}, "text", child, ...) */
function el(name, attributes, ...children) {
  const [tag, ...classes] = name.split("."), node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const key in attributes || {}) node.setAttribute(key, attributes[key]);
  for (const child of children) if (child !== null) node.append(child);
  return node;
}
const group = (n) => Number(n).toLocaleString("en-US");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");
/* Gives a canvas the pixels of this screen, and clears it. */
function fit(canvas, wide, high) {
  const ratio = window.devicePixelRatio || 1, paint = canvas.getContext("2d");
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(high * ratio);
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  return paint;
}
/* Draws a canvas again when the window or the colours change. */
function redraw(draw) {
  dark.addEventListener("change", draw);
  window.addEventListener("resize", draw);
}
/* A table that scrolls where it is too wide. heads: [element, words] pairs. */
function table(name, heads, body) {
  return el("div.scroll", null, el(name, null, el("thead", null, el("tr", null,
    ...heads.map(([head, words]) => el(head, {scope: "col"}, words)))), body));
}
