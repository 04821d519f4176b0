// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "addend/addend.h"
#include "gtest/gtest.h"

namespace {

addend_layout layout_of(uint64_t count, uint32_t world, uint32_t worker = 0) {
  addend_layout layout;
  addend_layout_init(&layout, sizeof(layout));
  layout.count = count;
  layout.world = world;
  layout.worker = worker;
  return layout;
}

addend_codec* make_codec(const char* spec, const addend_layout& layout) {
  addend_codec* codec = nullptr;
  EXPECT_EQ(addend_codec_create(spec, &layout, &codec), ADDEND_OK) << addend_last_error();
  return codec;
}

// With one worker the sum is the gradient itself.
void run_step(addend_codec* codec, std::vector<float>& gradient) {
  ASSERT_EQ(addend_codec_begin(codec, gradient.data()), ADDEND_OK);
  addend_round round;
  do {
    ASSERT_EQ(addend_codec_next_round(codec, &round), ADDEND_OK);
  } while (round.plane_count > 0);
  ASSERT_EQ(addend_codec_finish(codec, gradient.data()), ADDEND_OK) << addend_last_error();
}

TEST(CApi, EveryStatusHasANameAndErrorsAMessage) {
  for (int code = ADDEND_OK; code <= ADDEND_CHANGED; ++code) {
    EXPECT_STRNE(addend_status_name(static_cast<addend_status>(code)), "unknown");
  }
  EXPECT_STREQ(addend_status_name(static_cast<addend_status>(15)), "unknown");
  addend_codec* codec = nullptr;
  const addend_layout layout = layout_of(10, 1);
  EXPECT_EQ(addend_codec_create("nonsense", &layout, &codec), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(codec, nullptr);
  EXPECT_NE(std::string(addend_last_error()).find("nonsense"), std::string::npos);
}

TEST(CApi, NullArgumentsAreRefusedAndNullHandlesFreed) {
  addend_round round;
  uint64_t size = 0;
  EXPECT_EQ(addend_codec_create(nullptr, nullptr, nullptr), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_begin(nullptr, nullptr), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_next_round(nullptr, &round), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_finish(nullptr, nullptr), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_save_state(nullptr, nullptr, 0, &size), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_save_segment(nullptr, 0, nullptr, 0, &size), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_load_segment(nullptr, 0, nullptr, 0), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_scale_residual(nullptr, 1), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_fold(ADDEND_OP_SUM_F32, nullptr, nullptr, 1), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_fold(static_cast<addend_op>(15), &round, &round, 1), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_fold(ADDEND_OP_TABLE_SUM_U8, &round, &round, 1), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_pipeline_wait(nullptr, 0), ADDEND_INVALID_ARGUMENT);
  addend_codec_destroy(nullptr);
  addend_reducer_destroy(nullptr);
  addend_pipeline_destroy(nullptr);
}

TEST(CApi, StructsOfAnotherAgeAreFilledOrRefusedByWhatTheyHold) {
  struct Newer {
    addend_layout known;
    uint64_t later;
  } newer;
  addend_layout_init(&newer.known, sizeof(newer));
  newer.known.count = 10;
  EXPECT_EQ(newer.later, 0u);
  addend_codec* codec = nullptr;
  EXPECT_EQ(addend_codec_create("exact", &newer.known, &codec), ADDEND_OK);
  addend_codec_destroy(codec);
  newer.later = 1;
  EXPECT_EQ(addend_codec_create("exact", &newer.known, &codec), ADDEND_UNSUPPORTED);
  newer.known.size = 4;
  EXPECT_EQ(addend_codec_create("exact", &newer.known, &codec), ADDEND_INVALID_ARGUMENT);
}

TEST(CApi, AnOlderLayoutMeansTheDefaultsOfWhatItLacks) {
  constexpr uint32_t kFirstSize = offsetof(addend_layout, scale);
  addend_layout layout;
  std::memset(&layout, 0xA5, sizeof(layout));  // beyond the older struct there is anything
  addend_layout_init(&layout, kFirstSize);
  EXPECT_EQ(layout.size, kFirstSize);
  EXPECT_NE(layout.scale, 1.0) << "not the older caller's memory";
  layout.count = 4;
  addend_codec* codec = make_codec("dense", layout);
  std::vector<float> gradient(4, 2.0f);
  run_step(codec, gradient);
  EXPECT_EQ(gradient, std::vector<float>(4, 2.0f));
  addend_codec_destroy(codec);
}

TEST(CApi, AScaleMakesMeansAndIsRefusedByNameIfItCannot) {
  addend_layout layout = layout_of(4, 1);
  layout.scale = 0.5;
  for (const char* spec : {"dense", "exact", "exact:values=reproducible", "quant:bits=8"}) {
    addend_codec* codec = make_codec(spec, layout);
    std::vector<float> gradient(4, 2.0f);
    run_step(codec, gradient);
    for (const float x : gradient)
      EXPECT_NEAR(x, 1.0f, 0.05f) << spec;
    addend_codec_destroy(codec);
  }
  for (const double scale : {0.0, -1.0, 1e-60, 1e60, HUGE_VAL, std::nan("")}) {
    layout.scale = scale;
    addend_codec* codec = nullptr;
    EXPECT_EQ(addend_codec_create("exact", &layout, &codec), ADDEND_INVALID_ARGUMENT) << scale;
    EXPECT_NE(std::string(addend_last_error()).find("scale"), std::string::npos);
  }
}

TEST(CApi, AStepInPlaceLendsTheGradientAndItsLastRoundSaysSo) {
  addend_codec* codec = make_codec("dense", layout_of(50, 1));
  std::vector<float> gradient(50, 2.0f);
  EXPECT_EQ(addend_codec_begin_in_place(nullptr, gradient.data()), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_codec_begin_in_place(codec, nullptr), ADDEND_INVALID_ARGUMENT);
  ASSERT_EQ(addend_codec_begin_in_place(codec, gradient.data()), ADDEND_OK);
  addend_round round;
  ASSERT_EQ(addend_codec_next_round(codec, &round), ADDEND_OK);
  EXPECT_EQ(round.planes[0].data, gradient.data());
  EXPECT_EQ(round.last, 1u);
  gradient[3] = 9;  // what a reducer does
  ASSERT_EQ(addend_codec_next_round(codec, &round), ADDEND_OK);
  EXPECT_EQ(round.plane_count, 0u);
  EXPECT_EQ(round.last, 0u);
  ASSERT_EQ(addend_codec_finish(codec, gradient.data()), ADDEND_OK);
  EXPECT_EQ(gradient[3], 9.0f);
  EXPECT_EQ(addend_codec_memory_bytes(codec), 0u);
  addend_codec_destroy(codec);
}

TEST(CApi, TheModeOfTheNextStepIsKnownBeforeItBegins) {
  EXPECT_STREQ(addend_codec_next_mode(nullptr), "");
  const addend_layout layout = layout_of(64, 1);
  for (const auto& [spec, mode] : {std::pair{"dense", "dense"},
                                   {"exact", "packed"},
                                   {"exact:mode=two-level", "two-level"},
                                   {"exact:mode=sketch", "packed"},
                                   {"exact:mode=sketch,density=0.1", "sketch"},
                                   {"quant", "quant"}}) {
    addend_codec* codec = make_codec(spec, layout);
    EXPECT_STREQ(addend_codec_next_mode(codec), mode) << spec;
    addend_codec_destroy(codec);
  }
  addend_codec* codec = make_codec("exact:mode=sketch", layout);
  std::vector<float> gradient(64, 0.0f);
  gradient[7] = 1;
  ASSERT_EQ(addend_codec_begin(codec, gradient.data()), ADDEND_OK);
  EXPECT_STREQ(addend_codec_next_mode(codec), "packed") << "of the step in progress";
  addend_codec_cancel(codec);
  run_step(codec, gradient);
  EXPECT_STREQ(addend_codec_next_mode(codec), "sketch") << "the first step showed the union";
  addend_codec_destroy(codec);
}

TEST(CApi, AStepReportsWhatItDid) {
  addend_codec* codec = make_codec("exact:mode=packed", layout_of(1000, 1));
  std::vector<float> gradient(1000, 0.0f);
  gradient[7] = 3.5f;
  run_step(codec, gradient);
  EXPECT_EQ(gradient[7], 3.5f);
  addend_report report{};
  EXPECT_EQ(addend_codec_report(codec, &report), ADDEND_INVALID_ARGUMENT) << "the size is not set";
  report.size = sizeof(report);
  ASSERT_EQ(addend_codec_report(codec, &report), ADDEND_OK);
  EXPECT_STREQ(report.mode, "packed");
  EXPECT_EQ(report.union_nonzeros, 1u);
  EXPECT_EQ(report.rounds, 2u);
  EXPECT_EQ(report.wire_bytes, report.round_bytes[0] + report.round_bytes[1]);
  EXPECT_EQ(report.sampled_energy, 0);
  EXPECT_EQ(report.contributors, 1u);
  EXPECT_EQ(report.missing, 0u);
  EXPECT_EQ(addend_codec_set_missing(codec, 1), ADDEND_INVALID_ARGUMENT) << "only within a step";
  addend_codec_destroy(codec);
}

TEST(CApi, AReportFillsAnOlderStructAndTellsALossyStepsError) {
  addend_codec* codec = make_codec("quant:bits=4", layout_of(1000, 1));
  std::vector<float> gradient(1000);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = static_cast<float>(i % 17) - 8;
  run_step(codec, gradient);
  addend_report report{};
  report.size = sizeof(report);
  ASSERT_EQ(addend_codec_report(codec, &report), ADDEND_OK);
  EXPECT_NEAR(report.sampled_energy, 24000, 100);
  EXPECT_GT(report.sampled_error, 0.005 * report.sampled_energy);
  EXPECT_LT(report.sampled_error, 0.05 * report.sampled_energy);
  addend_report older{};
  older.size = offsetof(addend_report, sampled_energy);
  ASSERT_EQ(addend_codec_report(codec, &older), ADDEND_OK);
  EXPECT_STREQ(older.mode, "quant");
  EXPECT_EQ(older.sampled_energy, 0) << "not the older caller's memory";
  gradient[5] = NAN;
  run_step(codec, gradient);
  ASSERT_EQ(addend_codec_report(codec, &report), ADDEND_OK);
  EXPECT_EQ(report.nonfinite, 1000u);
  EXPECT_EQ(report.sampled_energy, 0);
  addend_codec_destroy(codec);
}

TEST(CApi, StateSavesAndRestores) {
  const addend_layout layout = layout_of(300, 1);
  addend_codec* first = make_codec("quant:feedback=float", layout);
  addend_codec* second = make_codec("quant:feedback=float", layout);
  std::vector<float> a(300, 0.3f), b(300, 0.3f);
  run_step(first, a);
  uint64_t size = 0;
  ASSERT_EQ(addend_codec_save_state(first, nullptr, 0, &size), ADDEND_OK);
  ASSERT_GT(size, 300u * 4);
  std::vector<uint8_t> state(size);
  EXPECT_EQ(addend_codec_save_state(first, state.data(), size - 1, &size), ADDEND_CAPACITY);
  ASSERT_EQ(addend_codec_save_state(first, state.data(), size, &size), ADDEND_OK);
  ASSERT_EQ(addend_codec_load_state(second, state.data(), size), ADDEND_OK);
  a.assign(300, 0.3f);
  run_step(first, a);
  run_step(second, b);
  EXPECT_EQ(a, b);
  state[0] ^= 1;
  EXPECT_EQ(addend_codec_load_state(second, state.data(), size), ADDEND_MISMATCH);
  addend_codec_destroy(first);
  addend_codec_destroy(second);
}

TEST(CApi, ASegmentMovesToAnotherBucketWithItsState) {
  const addend_segment alone = {42, 300}, together[] = {{7, 100}, {42, 300}};
  addend_layout layout = layout_of(300, 1);
  layout.segments = &alone;
  layout.segment_count = 1;
  addend_codec* first = make_codec("quant:feedback=float", layout);
  std::vector<float> a(300, 0.3f), b(400, 0.3f);
  run_step(first, a);
  uint64_t size = 0;
  ASSERT_EQ(addend_codec_save_segment(first, 0, nullptr, 0, &size), ADDEND_OK);
  std::vector<uint8_t> state(size);
  EXPECT_EQ(addend_codec_save_segment(first, 0, state.data(), size - 1, &size), ADDEND_CAPACITY);
  ASSERT_EQ(addend_codec_save_segment(first, 0, state.data(), size, &size), ADDEND_OK);
  EXPECT_EQ(addend_codec_save_segment(first, 1, nullptr, 0, &size), ADDEND_INVALID_ARGUMENT);

  layout.count = 400;
  layout.bucket = 9;
  layout.segments = together;
  layout.segment_count = 2;
  layout.first_step = 1;
  addend_codec* second = make_codec("quant:feedback=float", layout);
  EXPECT_EQ(addend_codec_load_segment(second, 0, state.data(), size), ADDEND_MISMATCH);
  ASSERT_EQ(addend_codec_load_segment(second, 1, state.data(), size), ADDEND_OK)
      << addend_last_error();
  ASSERT_EQ(addend_codec_scale_residual(first, 0.5), ADDEND_OK);
  ASSERT_EQ(addend_codec_scale_residual(second, 0.5), ADDEND_OK);
  EXPECT_EQ(addend_codec_scale_residual(second, 0), ADDEND_INVALID_ARGUMENT);
  a.assign(300, 0.3f);
  run_step(first, a);
  run_step(second, b);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin() + 100));
  addend_codec_destroy(first);
  addend_codec_destroy(second);

  layout.segments = nullptr;
  EXPECT_EQ(addend_codec_create("quant", &layout, &first), ADDEND_INVALID_ARGUMENT);
}

TEST(CApi, RowsMakeASegmentAMatrix) {
  const addend_segment segment = {42, 300};
  const uint64_t rows = 10, ragged = 7;
  addend_layout layout = layout_of(300, 1);
  layout.segments = &segment;
  layout.segment_count = 1;
  addend_codec* codec = make_codec("lowrank:rank=1", layout);
  EXPECT_STREQ(addend_codec_next_mode(codec), "dense") << "a vector";
  addend_codec_destroy(codec);
  layout.segment_rows = &rows;
  codec = make_codec("lowrank:rank=1", layout);
  std::vector<float> ones(300, 1.0f);
  run_step(codec, ones);
  addend_report report{};
  report.size = sizeof(report);
  ASSERT_EQ(addend_codec_report(codec, &report), ADDEND_OK);
  EXPECT_EQ(report.wire_bytes, (10u + 30u) * 4);
  EXPECT_NEAR(ones[299], 1, 1e-5);
  addend_codec_destroy(codec);
  layout.segment_rows = &ragged;
  EXPECT_EQ(addend_codec_create("lowrank", &layout, &codec), ADDEND_INVALID_ARGUMENT);
}

// A reducer of the caller's own: one worker, so it has nothing to add; fails on demand.
addend_status reduce_alone(void* context, addend_round*, uint64_t timeout_ns) {
  EXPECT_GT(timeout_ns, 0u);
  if (*static_cast<bool*>(context)) return ADDEND_OK;
  addend_set_error("the network is on fire");
  return ADDEND_UNAVAILABLE;
}

TEST(CApi, ACustomReducerCarriesThePipelineAndItsErrors) {
  bool works = true;
  addend_reducer* reducer = nullptr;
  ASSERT_EQ(addend_custom_create(1, 0, reduce_alone, &works, &reducer), ADDEND_OK);
  EXPECT_EQ(addend_reducer_world(reducer), 1u);
  addend_pipeline* pipeline = nullptr;
  ASSERT_EQ(addend_pipeline_create(reducer, 0, 0, &pipeline), ADDEND_OK);
  addend_codec* codec = make_codec("exact", layout_of(50, 1));
  std::vector<float> gradient(50, 2.0f);
  uint64_t ticket = 0;
  ASSERT_EQ(addend_pipeline_submit(pipeline, codec, gradient.data(), &ticket), ADDEND_OK);
  ASSERT_EQ(addend_pipeline_wait(pipeline, ticket), ADDEND_OK) << addend_last_error();
  works = false;
  ASSERT_EQ(addend_pipeline_submit(pipeline, codec, gradient.data(), &ticket), ADDEND_OK);
  EXPECT_EQ(addend_pipeline_wait(pipeline, ticket), ADDEND_UNAVAILABLE);
  EXPECT_NE(std::string(addend_last_error()).find("on fire"), std::string::npos);
  EXPECT_EQ(gradient, std::vector<float>(50, 2.0f));
  addend_pipeline_destroy(pipeline);
  addend_codec_destroy(codec);
  addend_reducer_destroy(reducer);
}

TEST(CApi, AReducerForDevicesIsToldWhereThePlanesAre) {
  const auto reduce = [](void* context, addend_round* round, uint32_t device, void* stream,
                         uint64_t) -> addend_status {
    EXPECT_EQ(device, ADDEND_DEVICE_CPU);
    EXPECT_EQ(stream, nullptr);
    *static_cast<uint32_t*>(context) += round->plane_count;
    return ADDEND_OK;
  };
  uint32_t planes = 0, lane = 3;
  addend_reducer* reducer = nullptr;
  EXPECT_EQ(addend_custom_create_for_devices(2, 2, reduce, &planes, &reducer),
            ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_custom_create_for_devices(1, 0, nullptr, &planes, &reducer),
            ADDEND_INVALID_ARGUMENT);
  ASSERT_EQ(addend_custom_create_for_devices(1, 0, reduce, &planes, &reducer), ADDEND_OK);
  addend_round round{};
  round.plane_count = 1;
  round.planes[0] = {ADDEND_OP_SUM_I32, 1, &lane, nullptr, nullptr};
  EXPECT_EQ(addend_reducer_reduce(reducer, &round, 1'000'000'000), ADDEND_OK);
  EXPECT_EQ(planes, 1u);
  addend_reducer_destroy(reducer);
}

TEST(CApi, FoldsOnADeviceRefuseWhatFoldsRefuse) {
  uint32_t lane = 1;
  const uint8_t* sources[] = {nullptr};
  EXPECT_EQ(addend_fold_on_device(ADDEND_OP_TABLE_SUM_U8, &lane, &lane, 1, nullptr),
            ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_fold_on_device(ADDEND_OP_SUM_I32, nullptr, &lane, 1, nullptr),
            ADDEND_INVALID_ARGUMENT);
  EXPECT_NE(std::string(addend_last_error()).find("addend_fold_on_device"), std::string::npos);
  EXPECT_EQ(addend_fold_tables_on_device(ADDEND_OP_SUM_I32, &lane, sources, 1, &lane, 1, nullptr),
            ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(
      addend_fold_tables_on_device(ADDEND_OP_TABLE_SUM_U8, &lane, sources, 1, &lane, 1, nullptr),
      ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_fold_on_device(ADDEND_OP_SUM_I32, nullptr, nullptr, 0, nullptr), ADDEND_OK);
}

TEST(CApi, APipelineTakesThreadsAndRefusesTooMany) {
  bool works = true;
  addend_reducer* reducer = nullptr;
  ASSERT_EQ(addend_custom_create(1, 0, reduce_alone, &works, &reducer), ADDEND_OK);
  addend_pipeline_options options = {};
  addend_pipeline* pipeline = nullptr;
  EXPECT_EQ(addend_pipeline_create_with(reducer, &options, &pipeline), ADDEND_INVALID_ARGUMENT)
      << "no size";
  options.size = sizeof options;
  options.threads = 65;
  EXPECT_EQ(addend_pipeline_create_with(reducer, &options, &pipeline), ADDEND_INVALID_ARGUMENT);
  EXPECT_NE(std::string(addend_last_error()).find("65"), std::string::npos);
  options.threads = 3;
  ASSERT_EQ(addend_pipeline_create_with(reducer, &options, &pipeline), ADDEND_OK);
  addend_codec* codec = make_codec("exact", layout_of(300'000, 1));
  std::vector<float> gradient(300'000, 2.0f);
  uint64_t ticket = 0;
  ASSERT_EQ(addend_pipeline_submit(pipeline, codec, gradient.data(), &ticket), ADDEND_OK);
  EXPECT_EQ(addend_pipeline_wait(pipeline, ticket), ADDEND_OK) << addend_last_error();
  EXPECT_EQ(gradient, std::vector<float>(300'000, 2.0f));
  addend_pipeline_destroy(pipeline);
  addend_codec_destroy(codec);
  addend_reducer_destroy(reducer);
}

TEST(CApi, ARoundIsReducedByHand) {
  constexpr uint32_t kWorld = 3;
  addend_reducer* reducers[kWorld];
  ASSERT_EQ(addend_local_create(kWorld, reducers), ADDEND_OK);
  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < kWorld; ++w) {
    workers.emplace_back([&, w] {
      uint32_t lanes[] = {w, 10 * w};
      addend_round round{};
      round.plane_count = 1;
      round.planes[0] = {ADDEND_OP_SUM_I32, 2, lanes, nullptr, nullptr};
      EXPECT_EQ(addend_reducer_reduce(reducers[w], &round, 60'000'000'000), ADDEND_OK);
      EXPECT_EQ(lanes[0], 3u);
      EXPECT_EQ(lanes[1], 30u);
    });
  }
  for (std::thread& worker : workers)
    worker.join();
  addend_round round{};
  EXPECT_EQ(addend_reducer_reduce(nullptr, &round, 1), ADDEND_INVALID_ARGUMENT);
  round.plane_count = ADDEND_MAX_PLANES + 1;
  EXPECT_EQ(addend_reducer_reduce(reducers[0], &round, 1), ADDEND_INVALID_ARGUMENT);
  round.plane_count = 1;
  round.planes[0] = {static_cast<addend_op>(ADDEND_OP_COUNT), 1, &round, nullptr, nullptr};
  EXPECT_EQ(addend_reducer_reduce(reducers[0], &round, 1), ADDEND_INVALID_ARGUMENT);
  round.planes[0] = {ADDEND_OP_TABLE_SUM_U8, 1, &round, nullptr, nullptr};
  EXPECT_EQ(addend_reducer_reduce(reducers[0], &round, 1), ADDEND_INVALID_ARGUMENT);
  for (addend_reducer* reducer : reducers)
    addend_reducer_destroy(reducer);
}

TEST(CApi, AFallbackTakesOverWhenTheFirstReducerIsGone) {
  const auto gone = [](void*, addend_round*, uint64_t) { return ADDEND_UNAVAILABLE; };
  addend_reducer *primary = nullptr, *other = nullptr, *both = nullptr;
  addend_reducer* group[2] = {nullptr, nullptr};
  ASSERT_EQ(addend_custom_create(1, 0, gone, nullptr, &primary), ADDEND_OK);
  ASSERT_EQ(addend_local_create(2, group), ADDEND_OK);
  ASSERT_EQ(addend_local_create(1, &other), ADDEND_OK);
  EXPECT_EQ(addend_fallback_create(primary, nullptr, nullptr, nullptr, &both),
            ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_fallback_create(primary, primary, nullptr, nullptr, &both),
            ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_fallback_create(primary, group[0], nullptr, nullptr, &both),
            ADDEND_INVALID_ARGUMENT);
  std::vector<std::string> told;
  const auto tell = [](void* context, const char* why) {
    static_cast<std::vector<std::string>*>(context)->emplace_back(why);
  };
  ASSERT_EQ(addend_fallback_create(primary, other, tell, &told, &both), ADDEND_OK)
      << addend_last_error();
  float lanes[3] = {1, 2, 3};
  addend_round round{};
  round.plane_count = 1;
  round.planes[0] = {ADDEND_OP_SUM_F32, 3, lanes, nullptr, nullptr};
  addend_reducer_begin_step(both);
  EXPECT_EQ(addend_reducer_reduce(both, &round, 1'000'000'000), ADDEND_OK) << addend_last_error();
  EXPECT_EQ(lanes[2], 3.0f);
  EXPECT_EQ(told.size(), 1u);
  EXPECT_EQ(addend_reducer_missing(both), 0u);
  addend_reducer_destroy(both);
  for (addend_reducer* reducer : group)
    addend_reducer_destroy(reducer);
}

TEST(CApi, SparseRowsAreSummedOverAPipeline) {
  constexpr uint32_t kWorld = 3;
  addend_reducer* reducers[kWorld];
  ASSERT_EQ(addend_local_create(kWorld, reducers), ADDEND_OK);
  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < kWorld; ++w) {
    workers.emplace_back([&, w] {
      addend_row_layout layout;
      addend_row_layout_init(&layout, sizeof(layout));
      layout.element = ADDEND_ROW_F64;
      layout.width = 2;
      layout.world = kWorld;
      layout.worker = w;
      layout.scale = 0.5;
      addend_codec* codec = nullptr;
      ASSERT_EQ(addend_row_codec_create("exact", &layout, &codec), ADDEND_OK);
      EXPECT_STREQ(addend_codec_next_mode(codec), "gather");
      addend_pipeline* pipeline = nullptr;
      ASSERT_EQ(addend_pipeline_create(reducers[w], 0, 0, &pipeline), ADDEND_OK);
      const int64_t numbers[] = {9, -4, static_cast<int64_t>(w)};
      const double values[] = {1, 2, 3, 4, 5, 6};
      addend_row_gradient gradient = {numbers, values, 3};
      uint64_t ticket = 0, count = 0;
      ASSERT_EQ(addend_pipeline_submit(pipeline, codec, &gradient, &ticket), ADDEND_OK);
      ASSERT_EQ(addend_pipeline_wait(pipeline, ticket), ADDEND_OK) << addend_last_error();
      const int64_t* rows = nullptr;
      const void* sums = nullptr;
      ASSERT_EQ(addend_row_codec_result(codec, &rows, &sums, &count), ADDEND_OK);
      ASSERT_EQ(std::vector<int64_t>(rows, rows + count), (std::vector<int64_t>{-4, 0, 1, 2, 9}));
      const auto* sum = static_cast<const double*>(sums);
      EXPECT_EQ(std::vector<double>(sum, sum + 10),
                (std::vector<double>{4.5, 6, 2.5, 3, 2.5, 3, 2.5, 3, 1.5, 3}));
      addend_report report;
      report.size = sizeof(report);
      ASSERT_EQ(addend_codec_report(codec, &report), ADDEND_OK);
      EXPECT_STREQ(report.mode, "gather");
      addend_pipeline_destroy(pipeline);
      addend_codec_destroy(codec);
    });
  }
  for (std::thread& worker : workers)
    worker.join();
  for (addend_reducer* reducer : reducers)
    addend_reducer_destroy(reducer);
}

TEST(CApi, SparseRowsRefuseOtherCodecsAndLayoutsOfAnotherTime) {
  addend_codec* codec = make_codec("exact", layout_of(10, 1));
  uint64_t count = 0;
  EXPECT_EQ(addend_row_codec_result(codec, nullptr, nullptr, &count), ADDEND_INVALID_ARGUMENT);
  addend_codec_destroy(codec);
  EXPECT_EQ(addend_row_codec_result(nullptr, nullptr, nullptr, &count), ADDEND_INVALID_ARGUMENT);
  struct {
    addend_row_layout known;
    uint64_t newer;
  } layout;
  const auto create = [&](const char* spec) {
    return addend_row_codec_create(spec, &layout.known, &codec);
  };
  addend_row_layout_init(&layout.known, sizeof(layout));
  EXPECT_EQ(layout.newer, 0u);
  EXPECT_EQ(create("exact"), ADDEND_OK);
  EXPECT_EQ(addend_row_codec_result(codec, nullptr, nullptr, &count), ADDEND_OK);
  EXPECT_EQ(count, 0u) << "before any step";
  addend_codec_destroy(codec);
  EXPECT_EQ(create("quant:feedback=byte"), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(codec, nullptr);
  layout.newer = 1;
  EXPECT_EQ(create("exact"), ADDEND_UNSUPPORTED);
  layout.known.size = 4;
  EXPECT_EQ(create("exact"), ADDEND_INVALID_ARGUMENT);
}

// ---- Pipelines: submissions, and reducers over TCP

struct Ending {
  int calls = 0;
  addend_status status = ADDEND_OK;
  std::string message;
};

void note_ending(void* context, const addend_outcome* outcome) {
  auto* ending = static_cast<Ending*>(context);
  ++ending->calls;
  ending->status = outcome->status;
  ending->message = outcome->message;
}

addend_status no_gradient(void*) {
  addend_set_error("no gradient yet");
  return ADDEND_IO;
}

addend_submission submission_of(const addend_part& part, Ending& ending) {
  addend_submission made{};
  made.size = sizeof(made);
  made.parts = &part;
  made.part_count = 1;
  made.done = note_ending;
  made.context = &ending;
  return made;
}

// A listening socket at a port of the system's choice.
int listener_of(std::string& address) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(to);
  EXPECT_EQ(bind(made, reinterpret_cast<sockaddr*>(&to), length), 0);
  EXPECT_EQ(listen(made, 8), 0);
  EXPECT_EQ(getsockname(made, reinterpret_cast<sockaddr*>(&to), &length), 0);
  address = "127.0.0.1:" + std::to_string(ntohs(to.sin_port));
  return made;
}

void run_over_mesh(addend_reducer* reducer, uint32_t w) {
  addend_link link{};
  ASSERT_EQ(addend_reducer_measure_link(reducer, 60'000'000'000, &link), ADDEND_OK);
  EXPECT_GT(link.latency_us, 0);
  EXPECT_EQ(addend_reducer_set_link(reducer, &link), ADDEND_OK);
  addend_pipeline* pipeline = nullptr;
  ASSERT_EQ(addend_pipeline_create(reducer, 0, 0, &pipeline), ADDEND_OK);
  addend_codec* codec = make_codec("exact", layout_of(100, 2, w));
  std::vector<float> gradient(100, 1.0f);
  const addend_part part = {codec, gradient.data()};
  Ending ending;
  addend_submission submission = submission_of(part, ending);
  int ended = 0;
  addend_outcome outcome{};
  ASSERT_EQ(addend_pipeline_run(pipeline, &submission, 1, &ended, &outcome), ADDEND_OK);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(outcome.status, ADDEND_OK) << outcome.message;
  ASSERT_GE(outcome.span_count, 3u);
  EXPECT_EQ(outcome.spans[0].stage, ADDEND_STAGE_ENCODE);
  EXPECT_LE(outcome.spans[0].end_ns, outcome.spans[1].begin_ns);
  EXPECT_EQ(ending.calls, 0) << "it has ended here";
  EXPECT_EQ(gradient, std::vector<float>(100, 2.0f));
  uint64_t ticket = 9;
  uint32_t rounds = 0;
  addend_pipeline_position(pipeline, &ticket, &rounds);
  EXPECT_EQ(ticket, 0u);
  EXPECT_GT(rounds, 0u);
  // The first worker cannot bring its gradient to the second bucket.
  if (w == 0) submission.prepare = no_gradient;
  ASSERT_EQ(addend_pipeline_run(pipeline, &submission, 0, &ended, &outcome), ADDEND_OK);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(outcome.ticket, 1u);
  EXPECT_EQ(outcome.span_count, 0u);
  addend_pipeline_destroy(pipeline);  // when all has ended
  EXPECT_EQ(ending.calls, 1);
  EXPECT_EQ(ending.status, w == 0 ? ADDEND_IO : ADDEND_MISMATCH);
  if (w == 0) {
    EXPECT_EQ(ending.message, "no gradient yet");
  }
  EXPECT_EQ(gradient, std::vector<float>(100, 2.0f));
  addend_codec_destroy(codec);
}

TEST(CApi, ASubmissionRunsInTheCallersThreadOverAMesh) {
  std::string addresses[2];
  const int listeners[2] = {listener_of(addresses[0]), listener_of(addresses[1])};
  const char* peers[2] = {addresses[0].c_str(), addresses[1].c_str()};
  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < 2; ++w) {
    workers.emplace_back([&, w] {
      addend_mesh_options options;
      addend_mesh_options_init(&options, sizeof(options));
      options.world = 2;
      options.worker = w;
      options.peers = peers;
      options.listener = listeners[w];
      options.token = reinterpret_cast<const uint8_t*>("secret");
      options.token_bytes = 6;
      addend_reducer* reducer = nullptr;
      ASSERT_EQ(addend_mesh_create(&options, &reducer), ADDEND_OK) << addend_last_error();
      run_over_mesh(reducer, w);
      addend_reducer_destroy(reducer);
    });
  }
  for (std::thread& worker : workers)
    worker.join();
}

TEST(CApi, AStoppedPipelineEndsEverythingWithTheReason) {
  addend_reducer* reducers[2];
  ASSERT_EQ(addend_local_create(2, reducers), ADDEND_OK);
  addend_pipeline* pipeline = nullptr;
  ASSERT_EQ(addend_pipeline_create(reducers[0], 0, 0, &pipeline), ADDEND_OK);
  addend_codec* codec = make_codec("dense", layout_of(10, 2));
  std::vector<float> gradient(10, 1.0f);
  const addend_part part = {codec, gradient.data()};
  Ending ending;
  const addend_submission submission = submission_of(part, ending);
  int ended = 0;
  addend_outcome outcome{};
  ASSERT_EQ(addend_pipeline_run(pipeline, &submission, 1, &ended, &outcome), ADDEND_OK);
  EXPECT_EQ(ended, 0) << "a local group is not waited for in the caller's thread";
  addend_pipeline_stop(pipeline, ADDEND_IO, "enough");
  addend_pipeline_destroy(pipeline);
  EXPECT_EQ(ending.calls, 1);
  EXPECT_EQ(ending.status, ADDEND_IO);
  EXPECT_EQ(ending.message, "enough");
  EXPECT_EQ(gradient, std::vector<float>(10, 1.0f));
  addend_codec_destroy(codec);
  for (addend_reducer* reducer : reducers)
    addend_reducer_destroy(reducer);
}

TEST(CApi, SubmissionsLinksAndMeshesRefuseWhatIsMissing) {
  addend_reducer* reducer = nullptr;
  ASSERT_EQ(addend_local_create(1, &reducer), ADDEND_OK);
  addend_pipeline* pipeline = nullptr;
  ASSERT_EQ(addend_pipeline_create(reducer, 0, 0, &pipeline), ADDEND_OK);
  addend_codec* codec = make_codec("dense", layout_of(10, 1));
  std::vector<float> gradient(10, 1.0f);
  addend_part part = {codec, gradient.data()};
  Ending ending;
  int ended = 0;
  addend_outcome outcome{};
  const auto refused = [&](const addend_submission& one) {
    return addend_pipeline_run(pipeline, &one, 1, &ended, &outcome) == ADDEND_INVALID_ARGUMENT;
  };
  const addend_submission good = submission_of(part, ending);
  EXPECT_EQ(addend_pipeline_run(nullptr, &good, 1, &ended, &outcome), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_pipeline_run(pipeline, nullptr, 1, &ended, &outcome), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_pipeline_run(pipeline, &good, 1, nullptr, &outcome), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_pipeline_run(pipeline, &good, 1, &ended, nullptr), ADDEND_INVALID_ARGUMENT);
  Ending accepted;
  addend_submission old = submission_of(part, accepted);  // of a caller that knows of no events
  old.size = offsetof(addend_submission, ready_event);
  old.ready_event = &old;
  EXPECT_EQ(addend_pipeline_run(pipeline, &old, 1, &ended, &outcome), ADDEND_OK);
  addend_submission bad = good;
  bad.size = 4;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.done = nullptr;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.parts = nullptr;
  EXPECT_TRUE(refused(bad));
  bad.part_count = 0;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.claim_count = 1;
  EXPECT_TRUE(refused(bad));
  const addend_claim nameless = {nullptr, 1};
  bad.claims = &nameless;
  EXPECT_TRUE(refused(bad));
  part.codec = nullptr;
  EXPECT_TRUE(refused(good));
  addend_pipeline_stop(nullptr, ADDEND_IO, "nobody");
  addend_pipeline_position(nullptr, nullptr, nullptr);
  addend_link link = {1, 0};
  EXPECT_EQ(addend_reducer_set_link(reducer, &link), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_reducer_set_link(reducer, nullptr), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_reducer_measure_link(reducer, 1, nullptr), ADDEND_INVALID_ARGUMENT);
  addend_mesh_options options;
  addend_mesh_options_init(&options, sizeof(options));
  addend_reducer* mesh = nullptr;
  EXPECT_EQ(addend_mesh_create(&options, &mesh), ADDEND_INVALID_ARGUMENT) << "no peers";
  const char* peer = "127.0.0.1:1";
  options.peers = &peer;
  options.world = 1;
  options.token_bytes = 3;
  EXPECT_EQ(addend_mesh_create(&options, &mesh), ADDEND_INVALID_ARGUMENT) << "no token";
  addend_pipeline_destroy(pipeline);
  EXPECT_EQ(ending.calls, 0);
  EXPECT_EQ(accepted.calls, 1);
  addend_codec_destroy(codec);
  addend_reducer_destroy(reducer);
}

TEST(CApiDevices, AnUnknownDeviceIsRefusedAndAMissingOneSaysWhy) {
  addend_layout layout;
  addend_layout_init(&layout, sizeof(layout));
  EXPECT_EQ(layout.device, ADDEND_DEVICE_CPU);
  layout.count = 8;
  addend_codec* codec = nullptr;
  layout.device = 7;
  EXPECT_EQ(addend_codec_create("exact", &layout, &codec), ADDEND_INVALID_ARGUMENT);
  layout.device = ADDEND_DEVICE_CUDA;
  const addend_status status = addend_codec_create("exact", &layout, &codec);
  if (status == ADDEND_OK) return addend_codec_destroy(codec);
  EXPECT_EQ(status, ADDEND_UNSUPPORTED);
  EXPECT_NE(std::string(addend_last_error()).find("no CUDA backend: "), std::string::npos)
      << addend_last_error();
}

TEST(CApiDevices, AStagedReducerTakesTheOtherOverAndSums) {
  addend_reducer* host = nullptr;
  ASSERT_EQ(addend_local_create(1, &host), ADDEND_OK);
  addend_reducer* staged = nullptr;
  EXPECT_EQ(addend_staged_create(host, 100, &staged), ADDEND_INVALID_ARGUMENT);
  EXPECT_EQ(addend_staged_create(nullptr, 0, &staged), ADDEND_INVALID_ARGUMENT);
  ASSERT_EQ(addend_staged_create(host, 4096, &staged), ADDEND_OK) << addend_last_error();
  EXPECT_EQ(addend_reducer_world(staged), 1u);
  std::vector<uint32_t> lanes(10000, 3);
  addend_round round{};
  round.plane_count = 1;
  round.planes[0] = {ADDEND_OP_SUM_I32, lanes.size(), lanes.data(), nullptr, nullptr};
  EXPECT_EQ(addend_reducer_reduce(staged, &round, 1'000'000'000), ADDEND_OK) << addend_last_error();
  EXPECT_EQ(lanes, std::vector<uint32_t>(10000, 3));
  addend_reducer_destroy(staged);
}

}  // namespace
