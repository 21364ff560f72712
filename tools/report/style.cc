#include "tools/report/style.h"

namespace bfio::report {

// The seven colours keep the order of Okabe and Ito's hues. Measured: each has a contrast of at least 3:1
// with its background (WCAG 2.1, 1.4.11); any two are at least 19 apart in CIELAB as seen with normal,
// deutan, protan and tritan vision (the latter after Machado et al., 2009).
absl::string_view StyleSheet() {
  return R"css(
:root {
  color-scheme: light dark;
  --page: #ffffff; --text: #1b1f24; --muted: #59626e; --rule: #d9dde2; --grid: #e6e9ed; --minor: #f1f3f5;
  --axis: #8a939e; --link: #0a5c9e; --band: 0.16;
  --c0: #7d8793; --c1: #0648b0; --c2: #ad2a08; --c3: #1c845d; --c4: #823888; --c5: #d27f00; --c6: #4496f2; --c7: #362f37;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --text: #e3e6ea; --muted: #9ca5b0; --rule: #343a42; --grid: #2a2f36; --minor: #1f2329;
    --axis: #6b7480; --link: #7ab8ea; --band: 0.24;
    --c0: #7d8793; --c1: #5f90e8; --c2: #e8793a; --c3: #2fd69a; --c4: #c792b4; --c5: #f5b82e; --c6: #a3d1fb; --c7: #dfe2e5;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Liberation Sans", Arial, sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 54rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.25; font-weight: 650; letter-spacing: -0.01em; margin: 0 0 0.75rem; }
h2 { font-size: 1.25rem; line-height: 1.3; font-weight: 650; margin: 3rem 0 0.5rem; padding-top: 1rem;
  border-top: 1px solid var(--rule); }
p { margin: 0.6rem 0; max-width: 44rem; overflow-wrap: anywhere; }
.lead { font-size: 1.125rem; color: var(--muted); }
.note { font-size: 0.875rem; color: var(--muted); }
nav ul { list-style: none; margin: 1.25rem 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0.25rem 1.5rem;
  font-size: 0.9375rem; }
a { color: var(--link); text-underline-offset: 0.15em; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1.25rem; margin: 1rem 0; font-size: 0.9375rem; }
dt { color: var(--muted); }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 1.25rem 0 0.5rem; }
table { border-collapse: collapse; font-size: 0.9375rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.4rem; }
th, td { padding: 0.3rem 0 0.3rem 1.75rem; text-align: right; vertical-align: baseline; }
th:first-child, td:first-child { padding-left: 0; }
th.text, td.text { text-align: left; }
thead th { font-weight: 600; vertical-align: bottom; border-bottom: 1px solid var(--axis); }
tbody th { font-weight: 400; min-width: 6.5rem; }
tbody tr + tr > * { border-top: 1px solid var(--grid); }
.unit { font-weight: 400; color: var(--muted); white-space: nowrap; }
figure { margin: 2rem 0 2.5rem; }
figcaption { font-weight: 600; margin-bottom: 0.35rem; }
details { font-size: 0.875rem; color: var(--muted); }
details table { font-size: 0.875rem; color: var(--text); }
details caption { font-weight: 400; color: var(--muted); }
summary { cursor: pointer; width: max-content; }
.legend { list-style: none; margin: 0 0 0.5rem; padding: 0; display: flex; flex-wrap: wrap; gap: 0.1rem 1.25rem;
  font-size: 0.8125rem; line-height: 1.5; }
.legend.many { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); }
.legend li { display: flex; align-items: center; gap: 0.45rem; }
.key { flex: none; position: relative; width: 1.5rem; border-top: 2px solid currentColor; }
.key.strong { border-top-width: 3px; }
.key.family { border-top-width: 1px; box-shadow: 0 3px 0 -1px var(--page), 0 4px 0 -1px, 0 -4px 0 0 var(--page), 0 -4px 0 0; }
.key-points { width: 0.5rem; height: 0.5rem; border: 0; border-radius: 50%; background: currentColor; }
.key-band::before { content: ""; position: absolute; inset: -7px 0 -5px; background: currentColor;
  opacity: var(--band); }
.key-reference { border-top: 1px dashed var(--text); }
.key-bar { width: 0.75rem; height: 0.75rem; border: 0; border-radius: 2px; background: currentColor; }
.key.d1 { border-top-style: dashed; }
.key.d2 { border-top-style: dotted; }
.key.d3 { border: 0; height: 2px; background: repeating-linear-gradient(90deg, currentColor 0 8px, transparent 8px 11px,
  currentColor 11px 13px, transparent 13px 16px); }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
svg { display: block; width: 100%; height: auto; font-size: 12px; font-family: inherit; }
svg.narrow { display: none; }
svg text { fill: var(--muted); font-variant-numeric: tabular-nums; }
svg .axis-title { fill: var(--text); }
.axis-title.x, .tick.x, .no-data { text-anchor: middle; }
.tick.y, .tick.slanted, text.reference { text-anchor: end; }
.grid, .axis, .line, .error, .reference { fill: none; }
.grid { stroke: var(--grid); }
.grid.minor { stroke: var(--minor); }
.axis { stroke: var(--axis); }
path.reference { stroke: var(--text); stroke-dasharray: 2 3; }
svg text.reference { fill: var(--text); stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }
.line { stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.line.family { stroke-width: 0.8; opacity: 0.45; }
.line.strong { stroke-width: 2.6; }
.line.d1 { stroke-dasharray: 7 5; stroke-linecap: butt; }
.line.d2 { stroke-dasharray: 0.1 4.5; stroke-width: 2.4; }
.line.d3 { stroke-dasharray: 11 4 2 4; stroke-linecap: butt; }
.dots { fill: none; stroke: currentColor; stroke-width: 5.5; stroke-linecap: round; }
.dots.family { stroke-width: 3; opacity: 0.45; }
.dots.strong { stroke-width: 7; }
.dots.many { stroke-width: 2; }
.band { fill: currentColor; opacity: var(--band); }
.bar { fill: currentColor; }
.bar.strong { stroke: var(--text); stroke-width: 1.4; }
.rim { fill: none; stroke: var(--page); stroke-width: 3.2; }
.error { stroke: var(--text); stroke-width: 1.2; }
path.error[class*=" c"] { stroke: currentColor; }
@media (max-width: 600px) {
  main { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  svg.wide { display: none; }
  svg.narrow { display: block; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.4rem; }
  th, td { padding-left: 1.1rem; }
}
@media print {
  main { max-width: none; padding: 0; }
  figure, .scroll { break-inside: avoid; }
  nav, details { display: none; }
}
)css";
}

}  // namespace bfio::report
