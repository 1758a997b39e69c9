"use strict";
(() => {
  const button = document.getElementById("copy");
  const text = document.getElementById("markdown");
  if (button && text) {
    button.hidden = false;
    const said = button.textContent;
    const tell = (words) => {
      button.textContent = words;
      setTimeout(() => { button.textContent = said; }, 2000);
    };
    // Where the clipboard is not given to pages, a selection still can be copied.
    const bySelection = () => {
      text.closest("details").open = true;
      const range = document.createRange();
      range.selectNodeContents(text);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      tell(document.execCommand("copy") ? button.dataset.copied : button.dataset.selected);
    };
    button.addEventListener("click", () => {
      if (!navigator.clipboard) { bySelection(); return; }
      navigator.clipboard.writeText(text.textContent).then(() => tell(button.dataset.copied), bySelection);
    });
  }

  const search = document.getElementById("search");
  const field = document.getElementById("find");
  if (search && field) {
    search.hidden = false;
    const found = document.getElementById("found");
    const outputs = [...document.querySelectorAll("details.output")].map((box) => ({
      box, open: box.open, lines: [...box.querySelectorAll("pre span")],
    }));
    let pending = 0;
    const look = () => {
      const wanted = field.value.toLowerCase();
      let hits = 0;
      for (const { box, open, lines } of outputs) {
        let here = 0;
        for (const line of lines) {
          const hit = wanted !== "" && line.textContent.toLowerCase().includes(wanted);
          line.classList.toggle("hit", hit);
          here += hit ? 1 : 0;
        }
        hits += here;
        box.classList.toggle("miss", wanted !== "" && here === 0);
        box.open = wanted === "" ? open : here > 0;
      }
      found.textContent = wanted === "" ? "" : hits === 1 ? found.dataset.one : found.dataset.many.replace("#", hits);
    };
    field.addEventListener("input", () => { clearTimeout(pending); pending = setTimeout(look, 80); });
  }
})();
