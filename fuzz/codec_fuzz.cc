// SPDX-License-Identifier: Apache-2.0
// Workers with gradients from the input, in every mode, value mode and element type of exact, or
// with options of another codec. First pass: the sums must be right (quant: near; of codecs that
// keep something back: the same on all workers). Second pass: a reducer that overwrites planes with
// the input before the workers see them; an error or any sum will do, a crash will not.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "fuzz/input.h"
#include "tests/support/exact_sum.h"
#include "tests/support/quant_workers.h"
#include "tests/support/tampered_steps.h"
#include "wire/half.h"

using addend::DType;
using addend::Layout;
using addend::Plane;
using addend::Round;
using addend::fuzz::Input;
using addend::fuzz::require;
using addend::testing_support::element;
using addend::testing_support::ExactSum;
using addend::testing_support::Gradient;
using addend::testing_support::QuantWorkers;
using addend::testing_support::TamperedSteps;

namespace {

struct Case {
  std::string spec;
  bool quant = false;
  bool reproducible = false;
  bool sketch = false;
  bool cast = false;   // without feedback
  bool keeps = false;  // something back, or leaves it out
  Layout layout;
  std::vector<Gradient> gradients;
};

// An input's first byte: from here on other codecs than exact.
constexpr uint8_t kQuant = 128, kOthers = 224;

void add_option(Input& input, Case& c, const char* key, std::initializer_list<const char*> values) {
  const std::string value = values.begin()[input.take<uint8_t>() % values.size()];
  if (value.empty()) return;
  c.spec += (c.spec.find(':') == std::string::npos ? ":" : ",") + std::string(key) + "=" + value;
}

void read_quant_options(Input& input, Case& c) {
  c.quant = true;
  const uint64_t bits = input.take<uint8_t>() % 9;
  c.spec = "quant:bits=" + (bits == 0 ? "auto" : std::to_string(bits));
  const auto add = [&](const char* key, std::initializer_list<const char*> values) {
    add_option(input, c, key, values);
  };
  add("levels", {"table", "uniform", "published"});
  add("rotate", {"block", "none"});
  add("block", {"64", "whole", "128", "1024", "2048"});
  add("rounding", {"correlated", "independent"});
  add("feedback", {"none", "float", "byte"});
  add("carrier", {"levels", "indices", ""});
  add("nonfinite", {"nan", "error"});
  add("index", {"none", "auto", "packed", "two-level"});
  add("down", {"", "8", "4"});
  add("norms", {"step", "ahead"});
}

void read_other_options(Input& input, Case& c) {
  constexpr const char* kNames[] = {"cast",    "lowrank", "topk",   "threshold",
                                    "redsync", "dgc",     "random", "leader"};
  const uint64_t name = input.take<uint8_t>() % std::size(kNames);
  c.spec = kNames[name];
  if (name == 0) {
    add_option(input, c, "to", {"bf16", "f16"});
    add_option(input, c, "feedback", {"", "float"});
    c.cast = c.spec.find("feedback") == std::string::npos;
  } else if (name == 1) {
    add_option(input, c, "rank", {"1", "2", "3", "5"});
    add_option(input, c, "factors", {"", "bf16", "quant"});
  } else {
    add_option(input, c, "density", {"0.01", "0.1", "0.5", "1", "0.0001"});
  }
  if (name > 1 && name < 6) {
    add_option(input, c, "index", {"", "packed", "two-level", "sketch", "bloom", "gather"});
    add_option(input, c, "values", {"", "reproducible"});
  }
  if (name == 5) {
    add_option(input, c, "momentum", {"", "0", "0.5"});
    add_option(input, c, "clip", {"", "1", "1e30"});
    add_option(input, c, "warmup", {"", "2"});
  }
  c.keeps = !c.cast;
}

void read_layout(Input& input, Case& c) {
  c.layout.dtype = static_cast<DType>(input.take<uint8_t>() % 3);
  c.layout.world = 1 + input.take<uint8_t>() % 4;
  c.layout.count = input.take<uint16_t>() % 2500;
  c.layout.seed = input.take<uint8_t>();
}

// A matrix, if there is room for one, and the rest.
void read_segments(Input& input, Case& c) {
  const uint64_t rows = 1 + input.take<uint8_t>() % 64, columns = c.layout.count / rows;
  if (columns == 0) return;
  c.layout.segments = {{7, rows * columns, rows}, {3, c.layout.count - rows * columns}};
}

Case read_case(Input& input) {
  constexpr const char* kModes[] = {"auto", "packed", "two-level", "sketch", "bloom", "gather"};
  Case c;
  const uint8_t first = input.take<uint8_t>();
  if (first >= kOthers) {
    read_other_options(input, c);
    read_layout(input, c);
    read_segments(input, c);
    return c;
  }
  if (first >= kQuant) {
    read_quant_options(input, c);
    read_layout(input, c);
    return c;
  }
  const uint64_t mode = first % std::size(kModes);
  c.reproducible = input.take<uint8_t>() % 2 == 1;
  // An automatic choice may be a sketch as well.
  c.sketch = mode == 0 || mode == 3;
  c.spec = std::string("exact:mode=") + kModes[mode];
  if (mode == 5) c.reproducible = false;
  if (c.reproducible) c.spec += ",values=reproducible";
  c.spec += ",block=" + std::to_string(1 + input.take<uint8_t>());
  c.spec += ",lanes=" + std::to_string(1 << input.take<uint8_t>() % 8);
  const uint8_t density = input.take<uint8_t>();
  if (density % 3 != 0) c.spec += ",density=" + std::to_string(density / 255.0);
  read_layout(input, c);
  c.layout.network.latency_us = input.take<uint8_t>() * 20.0;
  return c;
}

// Runs of (worker, gap, length, bits): sparse, in rows, or dense.
void read_gradients(Input& input, Case& c) {
  const uint32_t width = dtype_bytes(c.layout.dtype);
  c.gradients.assign(c.layout.world, Gradient(c.layout.count * width));
  uint64_t at = 0;
  while (!input.empty() && c.layout.count > 0) {
    Gradient& gradient = c.gradients[input.take<uint8_t>() % c.layout.world];
    at += input.take<uint8_t>();
    const uint64_t length = 1 + input.take<uint8_t>() % 80;
    uint32_t bits = input.take<uint32_t>();
    for (uint64_t i = 0; i < length; ++i, ++at, bits += 0x10001)
      std::memcpy(gradient.data() + at % c.layout.count * width, &bits, width);
  }
}

// What folding the gradients themselves would give, in worker order.
float dense_sum(const Case& c, uint64_t i) {
  const uint32_t width = dtype_bytes(c.layout.dtype);
  // Room for a lane of any operation, because combine_planes knows all of them.
  alignas(uint64_t) std::array<unsigned char, sizeof(uint64_t)> sum{}, next{};
  std::memcpy(sum.data(), c.gradients[0].data() + i * width, width);
  for (uint32_t w = 1; w < c.layout.world; ++w) {
    std::memcpy(next.data(), c.gradients[w].data() + i * width, width);
    const Plane to{sum_op(c.layout.dtype), 1, sum.data(), nullptr, nullptr};
    const Plane from{sum_op(c.layout.dtype), 1, next.data(), nullptr, nullptr};
    require(addend::testing_support::combine_planes(to, from).has_value());
  }
  return element(c.layout.dtype, sum.data(), 0);
}

DType cast_type(const Case& c) {
  return c.spec.find("to=f16") == std::string::npos ? DType::kBf16 : DType::kF16;
}

uint16_t half(DType type, float value) {
  return type == DType::kBf16 ? addend_bf16_from_f32(value) : addend_f16_from_f32(value);
}

float cast_sum(const Case& c, uint64_t i) {
  const DType to = cast_type(c);
  uint16_t sum = half(to, element(c.layout.dtype, c.gradients[0].data(), i));
  for (uint32_t w = 1; w < c.layout.world; ++w) {
    const uint16_t next = half(to, element(c.layout.dtype, c.gradients[w].data(), i));
    sum = half(to, element(to, &sum, 0) + element(to, &next, 0));
  }
  const float result = element(to, &sum, 0);
  if (c.layout.dtype == DType::kF32) return result;
  const uint16_t last = half(c.layout.dtype, result);
  return element(c.layout.dtype, &last, 0);
}

// Non-zero addends of element i; `last` is one of them.
uint32_t addends(const Case& c, uint64_t i, float* last) {
  uint32_t found = 0;
  for (const Gradient& gradient : c.gradients) {
    const float value = element(c.layout.dtype, gradient.data(), i);
    if (value == 0) continue;
    *last = value;
    ++found;
  }
  return found;
}

float exact_sum(const Case& c, uint64_t i) {
  ExactSum sum;
  for (const Gradient& gradient : c.gradients)
    sum.add(element(c.layout.dtype, gradient.data(), i));
  return sum.round(c.layout.dtype);
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void check_sums(const Case& c, const std::vector<Gradient>& sums) {
  for (uint32_t w = 1; w < c.layout.world; ++w)
    require(sums[w] == sums[0]);
  for (uint64_t i = 0; i < c.layout.count && !c.keeps; ++i) {
    const float actual = element(c.layout.dtype, sums[0].data(), i);
    if (c.cast) {
      require(same(actual, cast_sum(c, i)));
      continue;
    }
    float only = 0;
    if (addends(c, i, &only) < 2) {
      require(same(actual, only));
      continue;
    }
    if (!c.reproducible && same(actual, dense_sum(c, i))) continue;
    // A sketch adds integers: the exact sum, rounded once.
    if (c.reproducible || c.sketch) {
      require(same(actual, exact_sum(c, i)));
      continue;
    }
    require(false);
  }
}

void run_honest(const Case& c) {
  auto steps = TamperedSteps::create(c.spec, c.layout);
  require(steps.has_value());
  for (int step = 0; step < 3; ++step) {
    std::vector<Gradient> sums = c.gradients;
    require(steps->step(sums).has_value());
    check_sums(c, sums);
    for (uint32_t w = 1; w < c.layout.world; ++w)
      require(steps->worker(w).fingerprint() == steps->worker(0).fingerprint());
  }
}

void run_hostile(const Case& c, Input& input) {
  auto steps = TamperedSteps::create(c.spec, c.layout);
  require(steps.has_value());
  for (int step = 0; step < 3; ++step) {
    std::vector<Gradient> sums = c.gradients;
    const addend::Status status = steps->step(sums, [&](uint32_t, Round& round) {
      for (Plane& plane : round) {
        uint8_t control = 0;
        input.cycle(&control, 1);
        const uint64_t bytes = op_bytes(plane.op, plane.lanes);
        if (control % 4 == 0 || bytes == 0) continue;
        // All of it, or from some byte on.
        const uint64_t begin = control % 4 == 1 ? 0 : control % bytes;
        input.cycle(static_cast<uint8_t*>(plane.data) + begin,
                    control % 4 == 2 ? bytes - begin : std::min<uint64_t>(8, bytes - begin));
      }
    });
    if (!status) require(sums[0] == c.gradients[0]);
  }
}

// Without feedback: a block with a number that is not finite is NaN, others are within what one bit
// a worker may be off by.
void check_near(const Case& c, const std::vector<Gradient>& sums, uint64_t begin, uint64_t end) {
  double largest = 0, error = 0;
  bool finite = true;
  for (const Gradient& gradient : c.gradients) {
    double energy = 0;
    for (uint64_t i = begin; i < end; ++i)
      energy += std::pow(static_cast<double>(element(c.layout.dtype, gradient.data(), i)), 2);
    finite = finite && std::isfinite(energy);
    largest = std::max(largest, std::sqrt(energy));
  }
  const double most = c.layout.dtype == DType::kF16 ? 10 : 1e34;
  if (finite && largest > most) return;  // may overflow
  for (uint64_t i = begin; i < end; ++i) {
    double sum = 0;
    for (const Gradient& gradient : c.gradients)
      sum += static_cast<double>(element(c.layout.dtype, gradient.data(), i));
    const float actual = element(c.layout.dtype, sums[0].data(), i);
    require(std::isnan(actual) != finite);
    error += std::pow(static_cast<double>(actual) - sum, 2);
  }
  // Without rotation every element may be off by the range.
  const double bound = 16.0 * c.layout.world * std::sqrt(static_cast<double>(end - begin));
  if (finite) require(std::sqrt(error) <= bound * largest + 1e-6);
}

void run_honest_quant(const Case& c) {
  QuantWorkers workers(c.spec, c.layout);
  uint64_t block = std::max<uint64_t>(c.layout.count, 1);
  const std::size_t key = c.spec.find(",block=") + 7;
  if (c.spec[key] != 'w') block = std::stoull(c.spec.substr(key));
  // An index makes blocks of the union's elements, wherever they lie.
  const bool kept = c.spec.find("feedback=none") == std::string::npos ||
                    c.spec.find("index=none") == std::string::npos;
  for (int step = 0; step < 3; ++step) {
    std::vector<Gradient> sums = c.gradients;
    const addend::Status status = workers.step(sums);
    if (!status) {
      require(status.error().code == addend::Errc::kUndecodable);
      require(c.spec.find("nonfinite=error") != std::string::npos && sums == c.gradients);
      return;
    }
    for (uint32_t w = 1; w < c.layout.world; ++w) {
      require(sums[w] == sums[0]);
      require(workers.codec(w).fingerprint() == workers.codec(0).fingerprint());
    }
    for (uint64_t begin = 0; !kept && begin < c.layout.count; begin += block)
      check_near(c, sums, begin, std::min(begin + block, c.layout.count));
  }
}

void run_hostile_quant(const Case& c, Input& input) {
  QuantWorkers workers(c.spec, c.layout);
  for (int step = 0; step < 3; ++step) {
    std::vector<Gradient> sums = c.gradients;
    const addend::Status status =
        workers.step(sums, [&](uint32_t, const Plane&, std::span<uint8_t> plane) {
          uint8_t control = 0;
          input.cycle(&control, 1);
          if (control % 4 == 0 || plane.empty()) return;
          const uint64_t begin = control % 4 == 1 ? 0 : control % plane.size();
          const uint64_t rest = plane.size() - begin;
          input.cycle(plane.data() + begin, control % 4 == 2 ? rest : std::min<uint64_t>(8, rest));
        });
    if (!status) require(sums[0] == c.gradients[0]);
  }
}

// Some options exclude others; that is an answer too.
void run_quant(const Case& c, Input& input) {
  const auto codec = create_codec(*addend::CodecSpec::parse(c.spec), c.layout);
  if (!codec) return require(codec.error().code == addend::Errc::kInvalidArgument);
  run_honest_quant(c);
  run_hostile_quant(c, input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  Case c = read_case(input);
  read_gradients(input, c);
  if (c.quant) {
    run_quant(c, input);
    return 0;
  }
  run_honest(c);
  run_hostile(c, input);
  return 0;
}
