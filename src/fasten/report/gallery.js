// The gallery: Tab stops once for each pair, the arrow keys move within it, Enter enlarges; without this script, Tab stops at every image.
const enlarged = document.querySelector("#enlarged");
for (const wall of document.querySelectorAll(".wall")) {
  const items = [...wall.querySelectorAll(".suspect")];
  items.forEach((item, i) => (item.tabIndex = i ? -1 : 0));
  const across = () => items.filter((item) => item.offsetTop === items[0].offsetTop).length;
  const show = (item) => {
    const image = item.querySelector("img");
    enlarged.querySelector("img").src = image ? image.src : "data:,";
    enlarged.querySelector("img").alt = image ? image.alt : "";
    enlarged.querySelector("p").textContent = item.dataset.about;
    if (!enlarged.open) enlarged.showModal();
  };
  const go = (from, key) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across(), ArrowDown: across() }[key];
    const next = key === "Home" ? items[0] : key === "End" ? items.at(-1) : step && items[items.indexOf(from) + step];
    if (!next) return null;
    items.forEach((item) => (item.tabIndex = item === next ? 0 : -1));
    next.focus();
    return next;
  };
  wall.addEventListener("click", (event) => {
    const item = event.target.closest(".suspect");
    if (item) [enlarged.from, enlarged.go] = [item, go], show(item);
  });
  wall.addEventListener("keydown", (event) => go(event.target, event.key) && event.preventDefault());
  enlarged.addEventListener("keydown", (event) => {
    if (enlarged.go !== go) return;
    const next = go(enlarged.from, event.key);
    if (next) event.preventDefault(), (enlarged.from = next), show(next);
  });
}
enlarged?.addEventListener("close", () => enlarged.from?.focus());
