// The strips of a report: each one is mounted when it comes near the window, all of them before printing.

const places = new Map();

function show(place, state) {
  const data = document.querySelector(`script[data-strip="${place.id}"]`);
  if (!places.has(place)) places.set(place, JSON.parse(data.textContent));
  mount(place, places.get(place), { state });
  place.style.minHeight = "";
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      if (!places.has(target)) show(target);
    }
  },
  { rootMargin: "600px" },
);

let visits = 0;

function follow(event) {
  const link = event.target.closest?.("a[data-token]");
  if (!link) return;
  event.preventDefault(); // the browser would go to the top of the strip, after we went to the token
  const place = document.getElementById(link.hash.slice(1));
  visits += 1;
  show(place, { token: Number(link.dataset.token), until: Number(link.dataset.until), visits });
}

for (const place of document.querySelectorAll(".strip")) near.observe(place);
document.addEventListener("click", follow);
window.addEventListener("beforeprint", () => document.querySelectorAll(".strip").forEach((place) => places.has(place) || show(place)));
