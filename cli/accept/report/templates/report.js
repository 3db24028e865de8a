"use strict";
document.querySelectorAll(".tools,button.copy").forEach(e => e.classList.remove("hidden"));
const say = document.getElementById("status");
document.querySelectorAll("button.copy").forEach(button => button.addEventListener("click", () => {
  const code = button.previousElementSibling, range = document.createRange();
  range.selectNodeContents(code);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  const done = () => { say.textContent = "copied"; button.textContent = "copied"; };
  if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => { say.textContent = "selected; press Ctrl-C"; });
}));
document.querySelectorAll("th button").forEach(button => button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], column = head.cellIndex;
  const down = head.getAttribute("aria-sort") !== "ascending", rows = [...body.rows];
  const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  rows.sort((a, b) => key(a).localeCompare(key(b), undefined, {numeric: true}) * (down ? 1 : -1));
  rows.forEach(row => body.append(row));
  head.parentElement.querySelectorAll("th").forEach(th => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "ascending" : "descending");
}));
const find = document.getElementById("find");
find.addEventListener("input", () => {
  const text = find.value.trim().toLowerCase();
  let hits = 0;
  document.querySelectorAll("[data-host]").forEach(e => {
    const hit = text !== "" && e.dataset.host.toLowerCase().includes(text);
    e.classList.toggle("mark", hit);
    hits += hit;
  });
  document.querySelectorAll("tr[data-host]").forEach(e => e.classList.toggle("hidden", text !== "" && !e.classList.contains("mark")));
  say.textContent = text === "" ? "" : `${hits} places`;
});
