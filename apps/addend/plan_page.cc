// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/plan_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "apps/addend/table.h"

namespace addend::cli {

namespace {

using nlohmann::json;

constexpr const char* kHead = R"html(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Addend plan</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body{margin:0 auto;max-width:80rem;padding:1.5rem;color:#1c2024;background:#fff;font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:1.6rem 0 .3rem}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}
svg{display:block;width:100%;height:auto}svg text{fill:#60666d;font-size:12px}line{stroke:#d9dde2}
polyline{fill:none;stroke-width:2}polyline.model{stroke-dasharray:5 4}
.key span{margin-right:1rem;white-space:nowrap}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;width:100%}
th,td{padding:.3rem .5rem;border-bottom:1px solid #d9dde2;text-align:right;white-space:nowrap}
td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}
@media (prefers-color-scheme:dark){body{color:#e6e9ec;background:#14171a}line{stroke:#343b42}
th,td{border-color:#343b42}svg text{fill:#9aa3ac}}
</style></head><body><h1>Whether compression pays</h1>
)html";

constexpr const char* kHowToRead = R"html(<h2>How to read this</h2><ul>
<li><b>step</b>: the end of a timeline with one lane each for backward pass, encoding, network, adding and decoding;
buckets go through the lanes in the order in which they are ready.</li>
<li><b>x fp32, x fp16</b>: step time of overlapped dense fp32, and of cast:f16, by this one, on the same engine.</li>
<li><b>fidelity</b>: the part of a step's progress that is left; the verdict weighs it.</li>
<li><b>limit</b>: the lane without which the step would be shortest.</li>
<li><b>closed form</b>: tree and switch are worked out from formulas alone.</li>
<li><b>H0, H1, H2</b>: a server that decodes what each worker sent and encodes the sum; one that adds the compressed form
(Addend); and an optimizer that works on it, too, so that codecs run once in 100 steps. Dashed: the speedup model of
arXiv 1711.10123 (reconstructed), in which nothing overlaps; solid: the timeline.</li>
</ul></body></html>)html";

constexpr std::array kColours = {"#7a828c", "#0b6bcb", "#c2410c", "#15803d",
                                 "#9333ea", "#be185d", "#a16207", "#0e7490"};

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

struct Curve {
  std::string name;
  std::vector<double> ys;
  std::size_t colour = 0;
  bool model = false;
};

/// Whole decades around values, at least one, as exponents.
struct Decades {
  explicit Decades(const std::vector<double>& values) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    low = std::floor(std::log10(*least));
    high = std::max(std::ceil(std::log10(*most)), low + 1);
  }
  /// From 0 to 1.
  double place(double value) const { return (std::log10(value) - low) / (high - low); }
  double low = 0, high = 1;
};

/// Both axes logarithmic, a line a decade.
struct Frame {
  static constexpr double kWidth = 640, kHeight = 330, kLeft = 60, kRight = 10, kTop = 10,
                          kBottom = 50;
  double x(double value) const { return kLeft + xs.place(value) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - ys.place(value) * (kHeight - kTop - kBottom);
  }
  std::string axes(const char* title) const {
    constexpr const char* kLine = R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)";
    constexpr const char* kText = R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)";
    const double bottom = kHeight - kBottom;
    std::string out;
    for (double e = xs.low; e <= xs.high; ++e) {
      const double value = std::pow(10, e), at = x(value);
      out += fmt::format(kLine, at, bottom, at, kTop);
      out += fmt::format(kText, at, bottom + 16, "middle", fmt::format("{:g}", value));
    }
    for (double e = ys.low; e <= ys.high; ++e) {
      const double value = std::pow(10, e), at = y(value);
      out += fmt::format(kLine, kLeft, at, kWidth - kRight, at);
      out += fmt::format(kText, kLeft - 8, at + 4, "end", fmt::format("{:g}x", value));
    }
    return out + fmt::format(kText, (kLeft + kWidth - kRight) / 2, bottom + 36, "middle", title);
  }
  Decades xs, ys;
};

std::string plot(const std::string& title, const char* x_title, const std::vector<double>& xs,
                 const std::vector<Curve>& curves) {
  std::vector<double> all;
  for (const Curve& curve : curves)
    all.insert(all.end(), curve.ys.begin(), curve.ys.end());
  const Frame frame{Decades(xs), Decades(all)};
  std::string lines, key;
  for (const Curve& curve : curves) {
    std::string points;
    for (std::size_t i = 0; i < xs.size(); ++i)
      points += fmt::format("{:.1f},{:.1f} ", frame.x(xs[i]), frame.y(curve.ys[i]));
    const char* const colour = kColours[curve.colour % kColours.size()];
    const std::string name = escape(curve.name);
    lines +=
        fmt::format(R"(<polyline class="{}" stroke="{}" points="{}"><title>{}</title></polyline>)",
                    curve.model ? "model" : "timeline", colour, points, name);
    if (!curve.model)
      key += fmt::format(R"(<span style="color:{}">&#9632; {}</span>)", colour, name);
  }
  return fmt::format(
      R"(<div><h2>{0}</h2><svg viewBox="0 0 {1} {2}" role="img" aria-label="{0}">{3}{4}</svg>)"
      R"(<div class="key">{5}</div></div>)",
      escape(title), Frame::kWidth, Frame::kHeight, frame.axes(x_title), lines, key);
}

std::vector<Curve> curves_of(const json& codecs, const char* key) {
  std::vector<Curve> out;
  for (const json& one : codecs)
    out.push_back({one.at("codec"), one.at(key), out.size()});
  return out;
}

std::string plots(const json& document) {
  const json& curves = document.at("curves");
  const json& network = document.at("network");
  const std::string engine = curves.at("engine");
  std::vector<Curve> forms;
  for (const json& one : curves.at("forms")) {
    const std::string name = one.at("form");
    const std::size_t colour = 1 + forms.size() / 2;
    forms.push_back({name, one.at("over_workers"), colour});
    forms.push_back({name + ", nothing overlaps", one.at("model_over_workers"), colour, true});
  }
  return R"(<div class="grid">)" +
         plot(fmt::format("Speedup over link speed: {}, {} workers", engine,
                          network.at("workers").get<uint32_t>()),
              "Gbit/s", curves.at("gbit"), curves_of(curves.at("codecs"), "over_gbit")) +
         plot(fmt::format("Speedup over workers: {}, {} Gbit/s", engine,
                          format_number(network.at("gbit"))),
              "workers", curves.at("workers"), curves_of(curves.at("codecs"), "over_workers")) +
         plot(
             "What the form allows: " + curves.at("form_codec").get<std::string>() + " at a server",
             "workers", curves.at("workers"), forms) +
         "</div>";
}

std::string factor(const json& value) {
  return value.is_null() ? "-" : fmt::format("{:.2f}x", value.get<double>());
}

std::string break_even(const json& row) {
  if (row.at("codec") == "dense") return "";
  if (row.at("pays_on_any_link")) return "any link";
  const double gbit = row.at("break_even_gbit");
  return gbit > 0 ? format_number(gbit) + " Gbit/s" : "none";
}

std::string workers(const json& row) {
  if (row.at("codec") == "dense") return "";
  const uint32_t first = row.at("workers").at(0), last = row.at("workers").at(1);
  return first == 0 ? "none" : fmt::format("{} to {}", first, last);
}

std::string table(const json& rows) {
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const char* head : {"engine", "codec", "step", "x fp32", "x fp16", "link/step", "fidelity",
                           "limit", "pays below", "pays at workers"})
    out += fmt::format("<th>{}</th>", head);
  out += "</tr></thead><tbody>\n";
  for (const json& row : rows) {
    const std::string engine = row.at("engine");
    const Row cells = {row.at("closed_form") ? engine + " (closed form)" : engine,
                       row.at("codec"),
                       format_us(1e6 * row.at("step_s").get<double>()),
                       factor(row.at("over_f32")),
                       factor(row.at("over_f16")),
                       format_bytes(row.at("link_bytes")),
                       fmt::format("{:.4g}", row.at("fidelity").get<double>()),
                       row.at("limit"),
                       break_even(row),
                       workers(row)};
    out += "<tr>";
    for (const std::string& cell : cells)
      out += "<td>" + escape(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::string plan_page(const json& document) {
  std::string notes;
  for (const json& note : document.at("notes"))
    notes += "<li>" + escape(note) + "</li>";
  return fmt::format("{}<p><b>{}</b></p><p>{}</p><ul>{}</ul>{}<h2>All rows</h2>{}{}", kHead,
                     escape(document.at("verdict")), escape(document.at("about")), notes,
                     plots(document), table(document.at("rows")), kHowToRead);
}

}  // namespace addend::cli
