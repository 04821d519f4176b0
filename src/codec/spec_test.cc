// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "addend/codec.h"
#include "cuda/library.h"

namespace addend {
namespace {

Layout layout_of(uint64_t count) {
  Layout layout;
  layout.count = count;
  return layout;
}

std::unique_ptr<Codec> make(const std::string& text, uint64_t count) {
  auto codec = create_codec(*CodecSpec::parse(text), layout_of(count));
  EXPECT_TRUE(codec) << codec.error().message;
  return std::move(*codec);
}

void expect_refused(const std::string& text, const Layout& layout, Errc code,
                    const std::string& part) {
  const auto spec = CodecSpec::parse(text);
  ASSERT_TRUE(spec) << text;
  const auto codec = create_codec(*spec, layout);
  ASSERT_FALSE(codec) << text;
  EXPECT_EQ(codec.error().code, code) << text;
  EXPECT_NE(codec.error().message.find(part), std::string::npos) << codec.error().message;
}

// Runs the rounds of a world of one, whose sums are its own planes.
void run_rounds(Codec& codec) {
  Round round;
  while (true) {
    const auto more = codec.next_round(round);
    ASSERT_TRUE(more) << more.error().message;
    if (!*more) return;
  }
}

TEST(CodecSpec, ReadsANameAndItsOptionsInOrder) {
  const auto bare = CodecSpec::parse("dense");
  ASSERT_TRUE(bare);
  EXPECT_EQ(bare->name, "dense");
  EXPECT_TRUE(bare->options.empty());
  const auto full = CodecSpec::parse("exact:mode=two-level,tolerance=1e-06");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->name, "exact");
  ASSERT_EQ(full->options.size(), 2u);
  EXPECT_EQ(full->options[0], (std::pair<std::string, std::string>("mode", "two-level")));
  EXPECT_EQ(full->options[1], (std::pair<std::string, std::string>("tolerance", "1e-06")));
}

TEST(CodecSpec, WritesWhatItRead) {
  for (const char* text : {"dense", "exact:mode=sketch", "exact:mode=sketch,values=reproducible",
                           "x:a=1,b=2,c=3.5e+7", "A_b-c.d+e"}) {
    const auto spec = CodecSpec::parse(text);
    ASSERT_TRUE(spec) << text;
    EXPECT_EQ(spec->to_string(), text);
  }
}

TEST(CodecSpec, TakesTheFirstValueWithoutItsKeyWhereTheCodecSaysSo) {
  const auto spec = CodecSpec::parse("cast:f16,feedback=float");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->to_string(), "cast:to=f16,feedback=float");
  for (const char* text : {"cast:f16,to=bf16", "cast:feedback=float,f16", "cast:f16,bf16",
                           "cast:", "exact:packed", "dense:f16", "nothing:f16"})
    EXPECT_FALSE(CodecSpec::parse(text)) << text;
}

TEST(CodecSpec, RefusesBadSyntaxAndQuotesIt) {
  for (const char* text :
       {"", ":", ":mode=sketch", "exact:", "exact:mode", "exact:mode=", "exact:=sketch", "exact:,",
        "exact:mode=sketch,", "exact:mode=a=b", "ex act", "exact:mode=a b", "exact:mode=a:b",
        "exact;mode=a", "exact:mode=\xC3\xA9"}) {
    const auto spec = CodecSpec::parse(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().code, Errc::kInvalidArgument);
    EXPECT_NE(spec.error().message.find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(CodecSpec, RefusesAnOptionGivenTwice) {
  const auto spec = CodecSpec::parse("exact:mode=sketch,block=64,mode=packed");
  ASSERT_FALSE(spec);
  EXPECT_NE(spec.error().message.find("'mode' is given twice"), std::string::npos);
}

TEST(CreateCodec, MakesEveryCodecItNames) {
  const auto names = codec_names();
  for (const char* name : {"dense", "cast", "exact", "quant"})
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1);
  for (const auto& name : names)
    EXPECT_EQ(make(name, 10)->layout().count, 10u);
}

TEST(CreateCodec, RefusesUnknownNamesAndListsTheKnownOnes) {
  std::string known;
  for (const auto& name : codec_names())
    known += (known.empty() ? "" : ", ") + name;
  expect_refused("exakt", layout_of(8), Errc::kInvalidArgument,
                 "no codec named 'exakt'; there are: " + known);
}

TEST(CreateCodec, RefusesUnknownOptionsAndListsTheKnownOnes) {
  expect_refused("exact:modus=sketch", layout_of(8), Errc::kInvalidArgument,
                 "no option 'modus'; it has: mode, values, tolerance, block, density, lanes");
  expect_refused("dense:mode=sketch", layout_of(8), Errc::kInvalidArgument, "it has: none");
}

TEST(CreateCodec, RefusesValuesThatAnOptionDoesNotTake) {
  const std::pair<const char*, const char*> cases[] = {
      {"mode=dense", "one of auto|packed|two-level|sketch"},
      {"mode=pack", "one of"},
      {"mode=auto|packed", "one of"},
      {"values=double", "one of float|reproducible"},
      {"values=reproducible,tolerance=-1", "a number from"},
      {"values=reproducible,tolerance=0.6", "a number from"},
      {"values=reproducible,tolerance=nan", "a number from"},
      {"values=reproducible,tolerance=1e-3x", "a number from"},
      {"tolerance=0.001", "only applies to values=reproducible"},
      {"block=0", "a number from 1"},
      {"block=-1", "a number from 1"},
      {"block=1.5", "a number from 1"},
      {"block=4294967297", "a number from 1"},
      {"block=99999999999999999999", "a number from 1"},
      {"density=1.01", "a number from"},
      {"density=inf", "a number from"},
      {"lanes=3", "power of two"},
      {"mode=gather,values=reproducible", "has no values=reproducible"},
      {"lanes=0", "a number from 1"},
      {"lanes=2048", "a number from 1"},
  };
  for (const auto& [options, part] : cases) {
    const std::string text = std::string("exact:") + options;
    if (!CodecSpec::parse(text)) continue;
    expect_refused(text, layout_of(8), Errc::kInvalidArgument, part);
  }
}

TEST(CreateCodec, RefusesLayoutsThatCannotBe) {
  for (const char* name : {"dense", "cast", "exact", "quant"}) {
    Layout layout = layout_of(8);
    layout.world = 0;
    expect_refused(name, layout, Errc::kInvalidArgument, "world size 0");
    layout.world = (1u << 20) + 1;
    expect_refused(name, layout, Errc::kInvalidArgument, "world size 1048577");
    layout.world = 1u << 20;
    EXPECT_TRUE(create_codec({name, {}}, layout));
    expect_refused(name, layout_of((uint64_t{1} << 56) + 1), Errc::kInvalidArgument, "2^56");
    layout.dtype = static_cast<DType>(3);
    expect_refused(name, layout, Errc::kInvalidArgument, "element type");
  }
}

TEST(CreateCodec, RefusesNetworksThatCannotBe) {
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    Layout layout = layout_of(8);
    layout.network.latency_us = bad;
    expect_refused("exact", layout, Errc::kInvalidArgument, "network");
    layout = layout_of(8);
    layout.network.gbit_per_s = bad;
    expect_refused("exact", layout, Errc::kInvalidArgument, "network");
  }
}

TEST(CreateCodec, WithoutADeviceRefusesCudaAndSaysWhy) {
  if (cuda::runtime()) GTEST_SKIP() << "there is a device";
  Layout layout = layout_of(8);
  layout.execution.device = Execution::Device::kCuda;
  for (const char* name : {"dense", "cast", "exact", "quant"})
    expect_refused(name, layout, Errc::kUnsupported, "no CUDA backend: ");
}

TEST(CodecOptionHelp, DescribesEveryOption) {
  EXPECT_TRUE(codec_option_help("dense").empty());
  EXPECT_TRUE(codec_option_help("nothing").empty());
  const auto lines = codec_option_help("exact");
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0].rfind("mode=auto|packed|two-level|sketch|bloom|gather  ", 0), 0u) << lines[0];
  EXPECT_EQ(codec_option_help("quant").size(), 14u);
}

class Steps : public testing::TestWithParam<const char*> {};

TEST_P(Steps, RefuseCallsOutOfOrder) {
  const auto codec = make(GetParam(), 100);
  std::vector<float> gradient(100, 0.0f);
  gradient[3] = 1.5f;
  Round round;
  EXPECT_EQ(codec->next_round(round).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(codec->finish(gradient.data()).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(codec->begin(gradient.data()));
  EXPECT_EQ(codec->begin(gradient.data()).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(codec->finish(gradient.data()).error().code, Errc::kInvalidArgument);
  run_rounds(*codec);
  const auto late = codec->next_round(round);
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().message.find("next_round is out of order"), std::string::npos);
  EXPECT_EQ(codec->begin(gradient.data()).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(codec->finish(gradient.data()));
  EXPECT_EQ(gradient[3], 1.5f);
}

TEST_P(Steps, RefuseNullGradientsUnlessTheyAreEmpty) {
  const auto codec = make(GetParam(), 100);
  EXPECT_EQ(codec->begin(nullptr).error().code, Errc::kInvalidArgument);
  std::vector<float> gradient(100, 2.0f);
  ASSERT_TRUE(codec->begin(gradient.data()));
  run_rounds(*codec);
  EXPECT_EQ(codec->finish(nullptr).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(codec->finish(gradient.data()));
  EXPECT_EQ(gradient, std::vector<float>(100, 2.0f));

  const auto empty = make(GetParam(), 0);
  ASSERT_TRUE(empty->begin(nullptr));
  run_rounds(*empty);
  EXPECT_TRUE(empty->finish(nullptr));
  EXPECT_EQ(empty->report().rounds, 0u);
}

TEST_P(Steps, CanBeCancelledAnywhereWithoutChangingThePlan) {
  const auto codec = make(GetParam(), 200);
  const auto untouched = make(GetParam(), 200);
  std::vector<float> gradient(200, 0.0f);
  for (std::size_t i = 0; i < 200; i += 7)
    gradient[i] = static_cast<float>(i) - 90.0f;
  const std::vector<float> original = gradient;
  for (int step = 0; step < 3; ++step) {
    const uint64_t plan = codec->fingerprint();
    EXPECT_EQ(plan, untouched->fingerprint());
    Round round;
    for (int rounds = 0; rounds < 3; ++rounds) {
      ASSERT_TRUE(codec->begin(gradient.data()));
      for (int i = 0; i < rounds; ++i)
        if (!*codec->next_round(round)) break;
      codec->cancel();
      EXPECT_EQ(codec->fingerprint(), plan);
    }
    for (Codec* each : {codec.get(), untouched.get()}) {
      ASSERT_TRUE(each->begin(gradient.data()));
      EXPECT_EQ(each->fingerprint(), plan) << "a plan is the same before and during its step";
      run_rounds(*each);
      ASSERT_TRUE(each->finish(gradient.data()));
      EXPECT_EQ(gradient, original);
    }
  }
}

TEST_P(Steps, HaveAnotherFingerprintEveryTime) {
  const auto codec = make(GetParam(), 64);
  std::vector<float> gradient(64, 0.0f);
  gradient[9] = 1;
  std::vector<uint64_t> seen;
  for (int step = 0; step < 4; ++step) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), codec->fingerprint()), 0);
    seen.push_back(codec->fingerprint());
    ASSERT_TRUE(codec->begin(gradient.data()));
    run_rounds(*codec);
    ASSERT_TRUE(codec->finish(gradient.data()));
  }
}

TEST_P(Steps, HaveAFingerprintOfTheLayout) {
  const auto spec = *CodecSpec::parse(GetParam());
  const auto print = [&](auto change) {
    Layout layout = layout_of(64);
    change(layout);
    return (*create_codec(spec, layout))->fingerprint();
  };
  const uint64_t plain = print([](Layout&) {});
  EXPECT_EQ(plain, print([](Layout&) {}));
  EXPECT_NE(plain, print([](Layout& layout) { layout.count = 65; }));
  EXPECT_NE(plain, print([](Layout& layout) { layout.world = 2; }));
  EXPECT_NE(plain, print([](Layout& layout) { layout.seed = 2; }));
  EXPECT_NE(plain, print([](Layout& layout) { layout.bucket = 2; }));
  EXPECT_NE(plain, print([](Layout& layout) { layout.dtype = DType::kBf16; }));
}

INSTANTIATE_TEST_SUITE_P(EveryCodec, Steps,
                         testing::Values("dense", "cast:f16", "cast:f16,feedback=float", "exact",
                                         "exact:mode=packed", "exact:mode=two-level,block=16",
                                         "exact:mode=sketch,density=0.2",
                                         "exact:mode=packed,values=reproducible",
                                         "exact:mode=sketch,density=0.2,values=reproducible"));

// ---- skip_step: somebody else has done the dense step

TEST(SkipStep, IsLikeHavingDoneTheDenseStep) {
  for (const char* spec : {"dense", "exact", "exact:density=0.9,probe=4"}) {
    Layout layout;
    layout.count = 4096;
    layout.world = 1;
    const auto done = *create_codec(*CodecSpec::parse(spec), layout);
    const auto skipped = *create_codec(*CodecSpec::parse(spec), layout);
    int skips = 0;
    for (int step = 0; step < 40; ++step) {
      ASSERT_EQ(done->next_mode(), skipped->next_mode()) << spec << " step " << step;
      ASSERT_EQ(done->fingerprint(), skipped->fingerprint()) << spec << " step " << step;
      const bool dense = done->next_mode() == "dense";
      for (Codec* codec : {done.get(), skipped.get()}) {
        if (codec == skipped.get() && dense) {
          ASSERT_TRUE(codec->skip_step());
          ++skips;
          continue;
        }
        std::vector<float> gradient(layout.count, 1.0f);
        Round round;
        ASSERT_TRUE(codec->begin(gradient.data()));
        for (Result<bool> more = true; more && *more;)
          more = codec->next_round(round);
        ASSERT_TRUE(codec->finish(gradient.data()));
      }
    }
    EXPECT_GE(skips, 20) << spec << ": nothing was tested";
  }
}

TEST(SkipStep, IsRefusedInsideAStepAndBeforeOneThatIsNotDense) {
  Layout layout;
  layout.count = 100;
  std::vector<float> gradient(100, 1.0f);
  const auto dense = *create_codec(*CodecSpec::parse("dense"), layout);
  const uint64_t before = dense->fingerprint();
  ASSERT_TRUE(dense->begin(gradient.data()));
  EXPECT_FALSE(dense->skip_step());
  dense->cancel();
  EXPECT_EQ(dense->fingerprint(), before);
  EXPECT_TRUE(dense->skip_step());
  for (const char* spec : {"quant", "exact:mode=sketch"}) {
    const auto codec = *create_codec(*CodecSpec::parse(spec), layout);
    const Status status = codec->skip_step();
    ASSERT_FALSE(status) << spec;
    EXPECT_EQ(status.error().code, Errc::kInvalidArgument);
    EXPECT_NE(status.error().message.find(codec->next_mode()), std::string::npos);
  }
}

}  // namespace
}  // namespace addend
