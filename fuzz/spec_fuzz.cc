// SPDX-License-Identifier: Apache-2.0
// Any text as a codec spec: what parses is written back as it was, and what becomes a codec can run
// a step.
#include <cstdint>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "fuzz/input.h"

using addend::fuzz::require;

namespace {

constexpr uint64_t kCount = 150;

// A world of one: its sums are its own planes.
void run_step(addend::Codec& codec, bool lossless) {
  std::vector<float> gradient(kCount, 0.0f);
  for (uint64_t i = 0; i < kCount; i += 9)
    gradient[i] = static_cast<float>(i) + 1;
  const std::vector<float> original = gradient;
  addend::Round round;
  require(codec.begin(gradient.data()).has_value());
  while (true) {
    const auto more = codec.next_round(round);
    require(more.has_value());
    if (!*more) break;
  }
  require(codec.finish(gradient.data()).has_value());
  for (uint64_t i = 0; i < kCount && lossless; ++i) {
    // A tolerance may round values away, no other option may.
    const float error = gradient[i] - original[i];
    require(error <= 72.0f && error >= -72.0f);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto spec = addend::CodecSpec::parse(text);
  if (!spec) {
    require(spec.error().code == addend::Errc::kInvalidArgument);
    return 0;
  }
  // A value without its key gets it; everything else is written as it was read.
  const std::string written = spec->to_string();
  const auto again = addend::CodecSpec::parse(written);
  require(again.has_value() && again->name == spec->name && again->options == spec->options);
  std::string unnamed = written;
  if (!spec->options.empty())
    unnamed.erase(unnamed.find(':') + 1, spec->options[0].first.size() + 1);
  require(text == written || text == unnamed);
  addend::Layout layout;
  layout.count = kCount;
  auto codec = addend::create_codec(*spec, layout);
  if (!codec) {
    require(!codec.error().message.empty());
    return 0;
  }
  require((*codec)->fingerprint() == (*addend::create_codec(*spec, layout))->fingerprint());
  const bool lossless = spec->name == "dense" || spec->name == "exact";
  run_step(**codec, lossless);
  run_step(**codec, lossless);
  return 0;
}
