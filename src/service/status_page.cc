// SPDX-License-Identifier: Apache-2.0
// The page at /: one string, nothing loaded from elsewhere.
#include "service/status.h"

namespace addend::service {

std::string status_page() {
  return R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>addend serve</title>
<meta name="viewport" content="width=device-width">
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#1b2733;background:#fff}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
p.sub{color:#5b6b7b;margin:.2rem 0 1rem}
table{border-collapse:collapse;width:100%}th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid #e3e8ee}
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:#5b6b7b}
svg{width:100%;height:9rem;border:1px solid #e3e8ee;background:#fafbfc}
.in{stroke:#1f6feb}.out{stroke:#d9730d}polyline{fill:none;stroke-width:1.5}
.key i{display:inline-block;width:.8rem;height:.2rem;margin:0 .3rem .2rem 1rem}
.bad{color:#b42318}
@media (prefers-color-scheme:dark){body{background:#12171d;color:#dde5ee}th,p.sub{color:#93a1b0}
th,td,svg{border-color:#2a333d}svg{background:#171d24}}
</style></head><body>
<h1>addend serve</h1><p class="sub" id="sub">waiting for the first numbers</p>
<svg id="plot" viewBox="0 0 600 100" preserveAspectRatio="none" role="img" aria-label="rates of the last two minutes">
<polyline class="in" id="in"></polyline><polyline class="out" id="out"></polyline></svg>
<p class="key"><i style="background:#1f6feb"></i>received <span id="rin">0</span>
<i style="background:#d9730d"></i>sent <span id="rout">0</span></p>
<h2>Jobs</h2><table id="jobs"><thead><tr><th>job</th><th>workers</th><th>slots</th><th>turns</th><th>turns/s</th>
<th>partial</th><th>sent again</th><th>refused</th><th>slowest worker</th><th>waits for</th></tr></thead><tbody></tbody></table>
<h2>Refused</h2><table id="refused"><thead><tr><th>reason</th><th>frames</th></tr></thead><tbody></tbody></table>
<script>
"use strict";
const history_ = []; let before = null;
const $ = id => document.getElementById(id);
const rate = bits => bits >= 1e9 ? (bits / 1e9).toFixed(2) + " Gbit/s" : (bits / 1e6).toFixed(2) + " Mbit/s";
function rows(table, cells) {
  const body = $(table).tBodies[0]; body.replaceChildren();
  for (const line of cells) { const tr = body.insertRow(); for (const cell of line) tr.insertCell().textContent = cell; }
}
function plot() {
  const top = Math.max(1, ...history_.flatMap(h => [h.rx, h.tx]));
  for (const [id, key] of [["in", "rx"], ["out", "tx"]])
    $(id).setAttribute("points", history_.map((h, i) => `${i * 5},${98 - 95 * h[key] / top}`).join(" "));
}
function show(now) {
  const t = performance.now() / 1000, total = {...now.refused};
  const old = before ? new Map(before.s.jobs.map(j => [j.tenant + "/" + j.job + j.epoch, j])) : new Map();
  $("sub").textContent = `boot ${now.boot}, up ${now.uptime_s} s, ${now.threads} data threads, ${now.connections} connections, `
    + `${now.packets} datagrams received, ${now.sent_packets} sent, ${now.dropped} dropped`;
  if (before) {
    const dt = t - before.t;
    history_.push({rx: 8 * (now.bytes - before.s.bytes) / dt, tx: 8 * (now.sent_bytes - before.s.sent_bytes) / dt});
    if (history_.length > 120) history_.shift();
    $("rin").textContent = rate(history_.at(-1).rx); $("rout").textContent = rate(history_.at(-1).tx); plot();
  }
  rows("jobs", now.jobs.map(j => {
    const was = old.get(j.tenant + "/" + j.job + j.epoch), sum = Object.values(j.refused).reduce((a, b) => a + b, 0);
    for (const [why, n] of Object.entries(j.refused)) total[why] = (total[why] || 0) + n;
    const most = Math.max(0, ...j.last);
    return [j.tenant + "/" + j.job + (j.draining ? " (draining)" : j.epoch ? "" : " (waiting)"), `${j.joined}/${j.world}`, j.slots,
      j.turns, was ? Math.round((j.turns - was.turns) / (t - before.t)) : "", j.partial, j.retransmits, sum,
      most ? `${j.last.indexOf(most)} (${Math.round(100 * most / j.turns)} %)` : "", j.waits_for.join(", ")];
  }));
  rows("refused", Object.entries(total).sort((a, b) => b[1] - a[1]));
  before = {t, s: now};
}
async function tick() {
  try { show(await (await fetch("status.json")).json()); }
  catch (e) { $("sub").innerHTML = '<span class="bad">the server does not answer</span>'; }
  setTimeout(tick, 1000);
}
tick();
</script></body></html>
)html";
}

}  // namespace addend::service
