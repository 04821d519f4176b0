// SPDX-License-Identifier: Apache-2.0
// Any bytes as the saved state of a codec or of one segment: what is taken is saved again as it
// was, and steps can go on from it; what is refused changes nothing. The input may ask for a right
// header, to reach what stands behind it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "fuzz/input.h"

using addend::fuzz::Input;
using addend::fuzz::require;

namespace {

using Bytes = std::vector<uint8_t>;

constexpr uint64_t kWhole = 2;  // the two segments, or all of it
constexpr std::size_t kHeaderBytes = 24, kWholeHeaderBytes = 16;

struct Saved {
  std::unique_ptr<addend::Codec> codec;
  Bytes pristine;

  Bytes save(uint64_t what) const {
    return what == kWhole ? *codec->save_state() : *codec->save_segment(what);
  }
  addend::Status load(uint64_t what, const Bytes& state) const {
    return what == kWhole ? codec->load_state(state) : codec->load_segment(what, state);
  }
};

// A world of one: its sums are its own planes.
void run_step(addend::Codec& codec) {
  std::vector<float> gradient(210, 0.25f);
  addend::Round round;
  require(codec.begin(gradient.data()).has_value());
  while (true) {
    const auto more = codec.next_round(round);
    require(more.has_value());
    if (!*more) break;
  }
  (void)codec.finish(gradient.data());
}

std::vector<Saved> make_codecs() {
  std::vector<Saved> all;
  for (const char* spec :
       {"quant:block=64,feedback=float", "quant:block=64,feedback=byte",
        "quant:bits=auto,block=64,feedback=byte", "quant:rotate=none,block=whole,feedback=float",
        "quant:block=64", "exact", "dense", "topk:density=0.1", "dgc:density=0.1"}) {
    addend::Layout layout;
    layout.count = 210;
    layout.segments = {{7, 140}, {3, 70}};
    auto codec = addend::create_codec(*addend::CodecSpec::parse(spec), layout);
    require(codec.has_value());
    run_step(**codec);
    Bytes pristine = *(*codec)->save_state();
    all.push_back({*std::move(codec), std::move(pristine)});
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Saved> codecs = make_codecs();
  if (size < 2) return 0;
  const Saved& saved = codecs[data[0] % codecs.size()];
  const uint64_t what = data[1] % 3;
  require(saved.load(kWhole, saved.pristine).has_value());
  Bytes state(data + 2, data + size);
  const Bytes before = saved.save(what);
  if (data[1] >= 128) {
    const std::size_t header = what == kWhole ? kWholeHeaderBytes : kHeaderBytes;
    for (std::size_t i = 0; i < std::min({header, state.size(), before.size()}); ++i)
      state[i] = before[i];
  }
  if (data[1] % 64 >= 32) state.resize(before.size());
  const addend::Status status = saved.load(what, state);
  if (!status) {
    require(!status.error().message.empty());
    require(saved.save(what) == before && saved.save(kWhole) == saved.pristine);
    return 0;
  }
  require(saved.save(what) == state);
  run_step(*saved.codec);
  return 0;
}
