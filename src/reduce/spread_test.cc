// SPDX-License-Identifier: Apache-2.0
#include "reduce/spread.h"

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "addend/fold.h"
#include "gtest/gtest.h"
#include "tests/support/spawn.h"
#include "wire/hash.h"

namespace addend {
namespace {

using testing_support::far;
using testing_support::spawn_workers;

constexpr uint32_t kWorld = 3;

/// Workers whose rounds are spread over so many groups.
void spread(std::size_t groups, const std::function<void(Reducer&)>& body) {
  std::vector<std::unique_ptr<LocalGroup>> all;
  for (std::size_t i = 0; i < groups; ++i)
    all.push_back(*create_local_group(kWorld));
  spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
    std::vector<SpreadPart> parts;
    for (std::size_t i = 0; i < groups; ++i)
      parts.push_back({"group " + std::to_string(i), all[i]->reducer(w)});
    auto reducer = create_spread_reducer(std::move(parts));
    ASSERT_TRUE(reducer);
    body(**reducer);
  });
}

std::vector<uint8_t> bytes_for(uint32_t worker, Op op, uint64_t lanes) {
  std::vector<uint8_t> bytes(op_bytes(op, lanes));
  for (uint64_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(addend_random(worker + 1, i) & 0x37);
  return bytes;
}

TEST(SpreadReducer, SharesAreAllOfARoundOnce) {
  for (const std::size_t shares : {1, 2, 3, 7, 64}) {
    for (const uint64_t lanes : {0, 1, 4095, 4096, 8191, 8192, 100000, 1000001}) {
      std::vector<uint8_t> data(op_bytes(Op::kSumI32, lanes)), sums(2 * lanes);
      uint16_t table[16]{};
      Round round;
      round.add({Op::kSumI32, lanes, data.data(), nullptr, nullptr});
      round.add({Op::kTableSumU16, lanes, data.data(), table, sums.data()});
      std::array<uint64_t, 2> next{}, fewest{lanes, lanes};
      for (std::size_t i = 0; i < shares; ++i) {
        const Round share = share_of(round, i, shares);
        for (const Plane& piece : share) {
          const std::size_t p = piece.op == Op::kSumI32 ? 0 : 1;
          EXPECT_EQ(piece.data, data.data() + op_bytes(piece.op, next[p]));
          if (p == 1) {
            EXPECT_EQ(piece.sums, sums.data() + op_sum_bytes(piece.op, next[p]));
          }
          EXPECT_EQ(next[p] % 4096, 0u);
          next[p] += piece.lanes;
          fewest[p] = std::min(fewest[p], piece.lanes);
        }
      }
      EXPECT_EQ(next[0], lanes);
      EXPECT_EQ(next[1], lanes);
      if (lanes >= 8192 * shares) {
        EXPECT_GE(fewest[0] + 4096, lanes / shares);
      }
    }
  }
}

TEST(SpreadReducer, EveryOperationGivesWhatFoldGives) {
  uint16_t table[16];
  uint8_t narrow[16];
  for (uint16_t i = 0; i < 16; ++i)
    narrow[i] = static_cast<uint8_t>(table[i] = static_cast<uint16_t>(i * 5));
  for (const std::size_t groups : {1, 2, 5}) {
    spread(groups, [&](Reducer& reducer) {
      for (std::size_t o = 3; o < kOpCount; ++o) {  // below: floats
        const auto op = static_cast<Op>(o);
        const void* entries = op == Op::kTableSumU16 ? static_cast<const void*>(table) : narrow;
        for (const uint64_t lanes : {1, 4096, 12344, 50000}) {
          std::vector<uint8_t> data = bytes_for(reducer.worker(), op, lanes);
          std::vector<uint8_t> sums(op_sum_bytes(op, lanes)), expected(sums.size());
          std::vector<std::vector<uint8_t>> theirs;
          std::vector<const uint8_t*> sources;
          for (uint32_t w = 0; w < kWorld; ++w) {
            theirs.push_back(bytes_for(w, op, lanes));
            sources.push_back(theirs.back().data());
            if (!is_table_sum(op)) fold(op, expected.data(), sources.back(), lanes);
          }
          if (is_table_sum(op))
            fold_tables(op, expected.data(), sources.data(), kWorld, entries, lanes);
          Round round;
          round.add({op, lanes, data.data(), entries, sums.data()});
          const Status status = reducer.reduce(round, far());
          ASSERT_TRUE(status) << status.error().message;
          ASSERT_EQ(is_table_sum(op) ? sums : data, expected) << op_name(op) << " " << lanes;
        }
      }
    });
  }
}

TEST(SpreadReducer, RoundsInTwoHalvesAndAgreementsAreAsElsewhere) {
  spread(2, [](Reducer& reducer) {
    std::vector<int32_t> a(20000, 1), b(30000, 2);
    Round first, second;
    first.add({Op::kSumI32, a.size(), a.data(), nullptr, nullptr});
    second.add({Op::kSumI32, b.size(), b.data(), nullptr, nullptr});
    const Reducer::Claim same[] = {{"the plan", 7}};
    const auto one = reducer.start_step(same, first), two = reducer.start(second);
    ASSERT_TRUE(one && two);
    EXPECT_TRUE(*reducer.wait(*two, far()));
    EXPECT_TRUE(*reducer.wait(*one, far()));
    EXPECT_EQ(a, std::vector<int32_t>(a.size(), 3));
    EXPECT_EQ(b, std::vector<int32_t>(b.size(), 6));
    const Reducer::Claim other[] = {{"the plan", reducer.worker()}};
    const Status status = reducer.agree(other, far());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch);
  });
}

// Waits until it is interrupted, or fails at once.
class FailingReducer final : public Reducer {
 public:
  explicit FailingReducer(bool at_once) : at_once_(at_once) {}
  uint32_t world() const override { return kWorld; }
  uint32_t worker() const override { return 0; }
  uint32_t quorum() const override { return quorum_; }
  Status reduce(Round&, Deadline) override {
    if (at_once_) return make_error(Errc::kTimeout, "it did not come back");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return interrupted_; });
    return make_error(Errc::kUnavailable, "interrupted");
  }
  void interrupt() override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  void set_quorum(uint32_t quorum) { quorum_ = quorum; }

 private:
  bool at_once_, interrupted_ = false;
  uint32_t quorum_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

std::vector<SpreadPart> three_parts(int failing) {
  std::vector<SpreadPart> parts;
  for (int i = 0; i < 3; ++i)
    parts.push_back({std::string(1, static_cast<char>('a' + i)),
                     std::make_unique<FailingReducer>(i == failing)});
  return parts;
}

TEST(SpreadReducer, AGroupThatFailsIsNamedAndEndsTheOthersRounds) {
  for (int failing = 0; failing < 3; ++failing) {
    auto reducer = create_spread_reducer(three_parts(failing));
    ASSERT_TRUE(reducer);
    std::vector<int32_t> lanes(100000);
    Round round;
    round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
    const Status status = (*reducer)->reduce(round, far());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kTimeout);
    EXPECT_EQ(status.error().message,
              std::string(1, static_cast<char>('a' + failing)) + ": it did not come back");
    const Status later = (*reducer)->reduce(round, far());
    ASSERT_FALSE(later);
    EXPECT_EQ(later.error().code, Errc::kUnavailable);
  }
}

TEST(SpreadReducer, AnInterruptionReachesEveryGroup) {
  auto reducer = create_spread_reducer(three_parts(-1));
  ASSERT_TRUE(reducer);
  std::thread other([&] { (*reducer)->interrupt(); });
  std::vector<int32_t> lanes(100000);
  Round round;
  round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
  EXPECT_FALSE((*reducer)->reduce(round, far()));
  other.join();
}

TEST(SpreadReducer, AQuorumIsRefusedByName) {
  auto parts = three_parts(-1);
  static_cast<FailingReducer&>(*parts[1].reducer).set_quorum(2);
  const auto reducer = create_spread_reducer(std::move(parts));
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kUnsupported);
  EXPECT_EQ(reducer.error().message.rfind("b: a job with a quorum has one aggregator", 0), 0u);
}

}  // namespace
}  // namespace addend
