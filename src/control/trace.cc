// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cmath>
#include <type_traits>

#include "addend/control.h"

namespace addend::control {
namespace {

/// JSON of nothing but objects, arrays, numbers and words.
class Writer {
 public:
  Writer& open(char bracket) {
    comma();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  Writer& close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  Writer& key(std::string_view name) {
    comma();
    quote(name);
    text_ += ':';
    first_ = true;
    return *this;
  }
  Writer& word(std::string_view value) {
    comma();
    quote(value);
    return *this;
  }
  template <typename Number>
  Writer& number(Number value) {
    comma();
    if constexpr (std::is_floating_point_v<Number>) {
      if (!std::isfinite(value)) {
        text_ += "null";
        return *this;
      }
    }
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    text_.append(digits, end);
    return *this;
  }
  template <typename Number>
  Writer& field(std::string_view name, Number value) {
    return key(name).number(value);
  }
  template <typename Values>
  Writer& list(std::string_view name, const Values& values) {
    key(name).open('[');
    for (const auto value : values)
      number(+value);
    return close(']');
  }
  void line() { text_ += '\n'; }

  std::string take() { return std::move(text_); }

 private:
  void comma() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  void quote(std::string_view value) {
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    text_ += '"';
  }

  std::string text_;
  bool first_ = true;
};

void write_options(const Options& options, Writer& to) {
  to.key("options").open('{');
  to.key("policy").word(kPolicies[static_cast<uint8_t>(options.policy)]);
  to.field("floor", options.floor).field("window", options.window);
  to.field("window_s", options.window_s).field("every", options.every);
  to.field("epsilon", options.epsilon);
  to.field("omega", options.omega).field("least", options.least).field("most", options.most);
  to.key("scaling").word(options.scaling == Scaling::kGeometric ? "geometric" : "exponential");
  to.close('}');
}

void write_setup(const Setup& setup, Writer& to) {
  write_options(setup.options, to);
  to.field("world", setup.world).field("latency_s", setup.latency_s);
  to.field("bytes_per_s", setup.bytes_per_s);
  to.key("candidates").open('[');
  for (const Candidate& one : setup.candidates) {
    to.open('{').key("spec").word(one.spec).field("loss", +static_cast<uint8_t>(one.loss));
    to.field("factor", one.factor).field("bits", one.bits).field("union_bits", one.union_bits);
    to.field("rounds", one.rounds).close('}');
  }
  to.close(']').key("buckets").open('[');
  for (const Bucket& one : setup.buckets)
    to.open('{').field("elements", one.elements).field("bytes", one.bytes).close('}');
  to.close(']');
}

void write_decision(const Decision& decision, Writer& to) {
  to.key("decision").open('{').field("window", decision.window);
  to.list("plan", decision.plan).key("why").open('[');
  for (const Reason why : decision.why)
    to.word(reason_name(why));
  to.close(']').field("steps", decision.steps);
  to.field("reference_steps", decision.reference_steps).list("probe", decision.probe);
  to.field("realised_s", decision.realised_s).field("foreseen_s", decision.foreseen_s);
  to.field("predicted_s", decision.predicted_s);
  to.field("predicted_dense_s", decision.predicted_dense_s).field("phi", decision.phi);
  to.field("latency_s", decision.latency_s).field("bytes_per_s", decision.bytes_per_s);
  to.close('}');
}

}  // namespace

std::string Trace::to_json() const {
  Writer to;
  to.open('{').key("format").word("addend-trace").field("version", 3);
  write_setup(setup, to);
  to.key("windows").open('[');
  for (const Window& window : windows) {
    to.line();
    to.open('{').list("signals", window.observation.values());
    write_decision(window.decision, to);
    to.close('}');
  }
  to.close(']').close('}');
  to.line();
  return to.take();
}

Result<std::vector<Decision>> replay(const Trace& trace) {
  auto controller = create_controller(trace.setup);
  ADDEND_TRY(controller);
  std::vector<Decision> decisions;
  for (const Trace::Window& window : trace.windows) {
    auto decision = (*controller)->decide(window.observation);
    ADDEND_TRY(decision);
    decisions.push_back(*std::move(decision));
  }
  return decisions;
}

}  // namespace addend::control
