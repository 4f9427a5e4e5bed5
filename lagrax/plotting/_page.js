// Draws the panels one after the other, so that the page appears at once and stays responsive.
"use strict";

const waiting = [...document.querySelectorAll(".plot")];

const config = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
};

// A finger that moves over a drawing scrolls the page.
const touch = window.matchMedia("(hover: none)").matches ? { dragmode: false } : {};

// With a view box a printed drawing scales with its column instead of being cut off.
function scale(box) {
  for (const svg of box.querySelectorAll("svg.main-svg")) {
    svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  }
}

async function draw(box) {
  const panel = JSON.parse(box.nextElementSibling.textContent);
  await Plotly.newPlot(box, panel.data, { ...panel.layout, ...touch }, config);
  scale(box);
  box.on("plotly_afterplot", () => scale(box));
  box.dataset.drawn = "true";
}

async function drawAll() {
  while (waiting.length) {
    await draw(waiting.shift());
    await new Promise((resume) => setTimeout(resume));
  }
}

const closed = [];

window.addEventListener("beforeprint", () => {
  waiting.splice(0).forEach(draw);
  closed.push(...document.querySelectorAll("details:not([open])"));
  closed.forEach((details) => (details.open = true));
});

window.addEventListener("afterprint", () => {
  closed.splice(0).forEach((details) => (details.open = false));
});

drawAll();
