// SPDX-License-Identifier: Apache-2.0
// Codecs that send floats, over a server whose tenant forbids them: the sums arrive as integers.
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>

#include "addend/reduce.h"
#include "addend/service.h"
#include "gtest/gtest.h"
#include "tests/support/exact_sum.h"
#include "tests/support/gradients.h"
#include "tests/support/keys.h"
#include "tests/support/service_workers.h"
#include "tests/support/spawn.h"
#include "wire/element.h"

namespace addend {
namespace {

using testing_support::element;
using testing_support::ExactSum;
using testing_support::far;
using testing_support::key_of;
using testing_support::sum_by;
using testing_support::work_together;

using Bytes = std::vector<uint8_t>;
constexpr uint32_t kWorld = 3;
constexpr uint64_t kCount = 20000;

class IntegerPlanesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.address = "127.0.0.1";
    options_.threads = 2;
    options_.http = false;
    options_.tenants.resize(1);
    options_.tenants[0].name = "lab";
    options_.tenants[0].key = key_of(1);
    options_.tenants[0].floats = false;
    start();
  }

  void start() {
    auto server =
        Server::start(options_, [](LogLevel, std::string_view, std::span<const LogField>) {});
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
    options_.control_port = server_->control_port();
    access_ = {"127.0.0.1:" + std::to_string(options_.control_port), "lab", key_of(1), {}};
  }
  /// The same server again, of a tenant that may sum floats now if it could not before, and so on.
  void restart_with_other_operations() {
    server_.reset();
    options_.tenants[0].floats = !options_.tenants[0].floats;
    start();
  }

  void work(const std::function<void(Reducer&)>& body) {
    const auto options_for = [&](uint32_t worker) {
      ServiceReducerOptions options;
      options.access = access_;
      options.job = "ring";
      options.world = kWorld;
      options.worker = worker;
      options.slots = 64;
      options.join_timeout = std::chrono::seconds(30);
      return options;
    };
    work_together(kWorld, options_for, body);
  }

  /// The gradients of all workers after one step of a codec.
  std::vector<Bytes> sum(const char* spec, DType dtype, const std::vector<Bytes>& gradients) {
    std::vector<Bytes> sums = gradients;
    work([&](Reducer& reducer) {
      sum_by(spec, reducer, dtype, kCount, sums[reducer.worker()].data());
    });
    return sums;
  }

  ServerOptions options_;
  std::unique_ptr<Server> server_;
  ServiceAccess access_;
};

std::vector<Bytes> gradients_of(DType dtype, uint64_t period) {
  std::vector<Bytes> gradients(kWorld, Bytes(kCount * dtype_bytes(dtype)));
  for (uint32_t w = 0; w < kWorld; ++w) {
    for (uint64_t i = 0; i < kCount; ++i) {
      if (addend_random(w + 40, i) % period == 0)
        store_float(dtype, gradients[w].data(), i,
                    static_cast<float>(testing_support::normal(w, i)));
    }
  }
  return gradients;
}

TEST_F(IntegerPlanesTest, DenseAndExactSumWithinTheBoundOnAllWorkersAlike) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const char* spec : {"dense", "exact:mode=packed", "exact:mode=two-level", "exact"}) {
      const std::vector<Bytes> gradients = gradients_of(dtype, spec[0] == 'd' ? 1 : 20);
      const std::vector<Bytes> sums = sum(spec, dtype, gradients);
      // Numbers below 8, so three sums of half a quantum of 2^(3 - 29), and the type's rounding.
      const double bound = 3 * 0x1p-27;
      for (uint64_t i = 0; i < kCount; ++i) {
        ExactSum exact;
        for (const Bytes& gradient : gradients)
          exact.add(element(dtype, gradient.data(), i));
        const double expected = exact.value();
        const double rounding = std::abs(expected) * (dtype == DType::kF32    ? 0x1p-24
                                                      : dtype == DType::kBf16 ? 0x1p-8
                                                                              : 0x1p-11);
        ASSERT_NEAR(double{element(dtype, sums[0].data(), i)}, expected, bound + rounding)
            << spec << " of " << dtype_name(dtype) << ", element " << i;
      }
      for (uint32_t w = 1; w < kWorld; ++w)
        EXPECT_EQ(sums[w], sums[0]) << spec;
      // Integers do not know the order of arrival.
      EXPECT_EQ(sum(spec, dtype, gradients), sums) << spec;
    }
  }
}

TEST_F(IntegerPlanesTest, NaNArrivesAndStaysInItsBlock) {
  std::vector<Bytes> gradients = gradients_of(DType::kF32, 1);
  store_float(DType::kF32, gradients[1].data(), 5000, std::nanf(""));
  const std::vector<Bytes> sums = sum("dense", DType::kF32, gradients);
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(std::isnan(element(DType::kF32, sums[2].data(), i)), i / 256 == 5000 / 256) << i;
  }
}

TEST_F(IntegerPlanesTest, RoundsMixFloatsAndOtherPlanes) {
  work([](Reducer& reducer) {
    std::vector<float> floats(1000, 0.25f);
    std::vector<uint16_t> halves(300, addend_bf16_from_f32(2.0f));
    std::vector<uint64_t> bits(40, uint64_t{1} << reducer.worker());
    Round round;
    round.add({Op::kSumF32, floats.size(), floats.data(), nullptr, nullptr});
    round.add({Op::kOrU64, bits.size(), bits.data(), nullptr, nullptr});
    round.add({Op::kSumBf16, halves.size(), halves.data(), nullptr, nullptr});
    round.add({Op::kSumF32, 0, nullptr, nullptr, nullptr});
    const Status status = reducer.reduce(round, far());
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(floats, std::vector<float>(1000, 0.75f));
    EXPECT_EQ(halves, std::vector<uint16_t>(300, addend_bf16_from_f32(6.0f)));
    EXPECT_EQ(bits, std::vector<uint64_t>(40, 7));
  });
}

TEST_F(IntegerPlanesTest, ARestartThatChangesWhetherFloatsTravelIsAMismatchOnAllWorkers) {
  for (int restart = 0; restart < 2; ++restart) {
    std::barrier summed(kWorld, [&]() noexcept { restart_with_other_operations(); });
    work([&](Reducer& reducer) {
      std::vector<float> floats(kCount, 0.25f);
      Round round;
      round.add({Op::kSumF32, floats.size(), floats.data(), nullptr, nullptr});
      const Status before = reducer.reduce(round, far());
      EXPECT_TRUE(before) << before.error().message;
      summed.arrive_and_wait();
      const Status after = reducer.reduce(round, far());
      ASSERT_FALSE(after);
      EXPECT_EQ(after.error().code, Errc::kMismatch) << after.error().message;
      EXPECT_NE(after.error().message.find("floats"), std::string::npos) << after.error().message;
    });
  }
}

}  // namespace
}  // namespace addend
