"use strict";
{
  const page = JSON.parse(document.getElementById("fa-tune-page").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Figures: drawn anew when the colours of the system change.
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line,
        tickColor: line, labelFontSize: 11 },
      legend: { labelColor: ink, titleColor: ink, symbolBaseFillColor: ink, labelLimit: 0 },
      text: { color: ink },
      view: { stroke: line },
      rule: { color: ink },
      line: { color: ink },
      tick: { color: ink },
    };
  };
  let drawn = [];
  const draw = async () => {
    drawn.forEach((result) => result.finalize());
    const places = [...document.querySelectorAll("[data-figure]")];
    drawn = await Promise.all(places.map((place) =>
      vegaEmbed(place, page.figures[place.dataset.figure],
        { actions: false, renderer: "svg", config: colours() })));
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  };
  dark.addEventListener("change", draw);
  draw();

  // Tables: sorted by a click on a heading, filtered by words that a row must have.
  const keyOf = (cell) => ("value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent);
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what is missing stands last
    return typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  for (const heading of document.querySelectorAll("th[aria-sort]")) {
    heading.querySelector("button").addEventListener("click", () => {
      const body = heading.closest("table").tBodies[0];
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [keyOf(row.cells[heading.cellIndex]), row]);
      rows.sort(([a], [b]) => (down && a !== "" && b !== "" ? compare(b, a) : compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  }
  for (const input of document.querySelectorAll("[data-filters]")) {
    const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
    const count = document.querySelector(`output[for="${input.id}"]`);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
    });
  }
}
