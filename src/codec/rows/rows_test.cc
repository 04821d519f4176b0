// SPDX-License-Identifier: Apache-2.0
#include "codec/rows/rows.h"

#include <string>

#include <gtest/gtest.h>

namespace addend {
namespace {

Result<std::unique_ptr<RowCodec>> make(const std::string& spec, const RowLayout& layout) {
  return create_row_codec(*CodecSpec::parse(spec), layout);
}

std::string refusal(const std::string& spec, const RowLayout& layout) {
  const auto made = make(spec, layout);
  if (made) return "";
  EXPECT_EQ(made.error().code, Errc::kInvalidArgument);
  return made.error().message;
}

RowLayout layout_of(RowElement element, uint32_t world = 2) {
  RowLayout layout;
  layout.element = element;
  layout.world = world;
  return layout;
}

TEST(RowCodec, RefusesByNameWhatItCannotDo) {
  const RowLayout floats = layout_of(RowElement::kF32);
  EXPECT_NE(refusal("quant:feedback=float", floats).find("feedback=float"), std::string::npos);
  EXPECT_EQ(refusal("quant:feedback=none", floats), "");
  EXPECT_NE(refusal("exakt", floats).find("exakt"), std::string::npos);
  EXPECT_NE(refusal("exact:mode=magic", layout_of(RowElement::kI8)).find("magic"),
            std::string::npos);
  RowLayout layout = floats;
  layout.worker = 2;
  EXPECT_NE(refusal("exact", layout).find("worker 2"), std::string::npos);
  layout = layout_of(RowElement::kI32);
  layout.scale = 0.5;
  EXPECT_NE(refusal("exact", layout).find("scaled"), std::string::npos);
  layout = floats;
  layout.width = uint64_t{1} << 60;
  EXPECT_NE(refusal("exact", layout).find("wide"), std::string::npos);
}

TEST(RowCodec, RefusesRowsWithoutMemoryAndMissingWorkers) {
  const auto codec = *make("exact", layout_of(RowElement::kF32));
  EXPECT_EQ(codec->begin(nullptr).error().code, Errc::kInvalidArgument);
  const int64_t rows[] = {1};
  const RowGradient no_rows{nullptr, rows, 1}, no_values{rows, nullptr, 1}, nothing;
  EXPECT_EQ(codec->begin(&no_rows).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(codec->begin(&no_values).error().code, Errc::kInvalidArgument);
  const RowGradient many{rows, rows, uint64_t{1} << 60};
  EXPECT_EQ(codec->begin(&many).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(codec->begin(&nothing));
  EXPECT_EQ(codec->set_missing(2).error().code, Errc::kUnsupported);
}

TEST(RowCodec, ASumThatContradictsItselfIsUndecodable) {
  const auto codec = *make("exact", layout_of(RowElement::kF32));
  const int64_t rows[] = {1, 2};
  const float values[] = {3, 4};
  const RowGradient gradient{rows, values, 2};
  for (const uint32_t worker : {0u, 1u}) {
    ASSERT_TRUE(codec->begin(&gradient));
    Round round;
    ASSERT_TRUE(*codec->next_round(round));
    auto* words = static_cast<uint64_t*>(round.planes[0].data);
    words[round.planes[0].bounds[worker]] |= uint64_t{1} << 60;
    const auto more = codec->next_round(round);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, Errc::kUndecodable);
    EXPECT_NE(more.error().message.find("worker " + std::to_string(worker)), std::string::npos);
  }
}

TEST(RowCodec, FingerprintsTellPlansApart) {
  const RowLayout layout = layout_of(RowElement::kF32);
  const uint64_t one = (*make("exact", layout))->fingerprint();
  EXPECT_EQ((*make("exact", layout))->fingerprint(), one);
  EXPECT_NE((*make("dense", layout))->fingerprint(), one);
  EXPECT_NE((*make("exact", layout_of(RowElement::kF64)))->fingerprint(), one);
  const auto changed = [&](auto change) {
    RowLayout other = layout;
    change(other);
    return (*make("exact", other))->fingerprint();
  };
  EXPECT_EQ(changed([](RowLayout& l) { l.worker = 1; }), one);
  EXPECT_NE(changed([](RowLayout& l) { l.width = 2; }), one);
  EXPECT_NE(changed([](RowLayout& l) { l.id = 2; }), one);
  EXPECT_NE(changed([](RowLayout& l) { l.seed = 2; }), one);
  EXPECT_NE(changed([](RowLayout& l) { l.scale = 2; }), one);
  EXPECT_NE(changed([](RowLayout& l) { l.first_step = 2; }), one);
  EXPECT_NE(changed([](RowLayout& l) { l.network.latency_us = 2; }), one);
  EXPECT_NE(changed([](RowLayout& l) { l.network.narrows = true; }), one);
}

TEST(RowCodec, RoomGrowsInSteps) {
  EXPECT_EQ(rows::roomy(0), 64u);
  EXPECT_EQ(rows::roomy(63), 64u);
  EXPECT_EQ(rows::roomy(64), 128u);
  EXPECT_EQ(rows::roomy(1000), 1024u);
  EXPECT_EQ(rows::roomy(1024), 1280u);
}

}  // namespace
}  // namespace addend
