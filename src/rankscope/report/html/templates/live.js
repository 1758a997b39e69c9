"use strict";
(() => {
  const board = document.getElementById("board");
  const lost = document.getElementById("lost");
  const show = (text) => {
    // What is parsed here runs no script; everything of the job is escaped text in it.
    const fresh = new DOMParser().parseFromString(text, "text/html").body;
    for (const box of fresh.querySelectorAll("details[id]")) {
      const before = document.getElementById(box.id);
      if (before) box.open = before.open;
    }
    board.replaceChildren(...fresh.childNodes);
  };
  const turn = async () => {
    try {
      const answer = await fetch("board", { cache: "no-store" });
      if (answer.headers.get("rankscope-ended")) { location.reload(); return; }
      if (answer.ok) show(await answer.text());
      lost.hidden = answer.ok;
    } catch {
      lost.hidden = false;
    }
    setTimeout(turn, lost.hidden ? 1000 : 3000);
  };
  setTimeout(turn, 1000);
})();
