"use strict";
// Draws the plots in the colours of the style sheet, and again when the theme changes.
const told = document.getElementById("specs").textContent;
const touch = matchMedia("(pointer: coarse)").matches;

function specs() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const scale = ["--heat-low", "--heat-middle", "--heat-high"].map((name, step) => [step / 2, color(name)]);
  return JSON.parse(told, (key, value) => {
    if (key === "colorscale") return scale;
    return /color$/.test(key) && typeof value === "string" ? color(value) : value;
  });
}

function draw() {
  for (const [name, { data, layout }] of Object.entries(specs())) {
    if (!document.getElementById(name)) continue;
    layout.dragmode = touch ? false : "zoom"; // a finger scrolls the page
    Plotly.react(name, data, layout, { responsive: true, displayModeBar: false });
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
