// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

#include "addend/reduce.h"
#include "base/bits.h"
#include "gtest/gtest.h"
#include "reduce/mesh/mesh.h"
#include "tests/support/spawn.h"
#include "tests/support/wires.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;
using testing_support::far;
using testing_support::spawn_workers;

// A server that dies in a given round, when it has told only some of the workers the sums. The
// others' planes are half overwritten by then.
class DyingReducer final : public Reducer {
 public:
  DyingReducer(std::unique_ptr<Reducer> all, uint32_t last_round, uint64_t told)
      : all_(std::move(all)), last_round_(last_round), told_(told) {}
  uint32_t world() const override { return all_->world(); }
  uint32_t worker() const override { return all_->worker(); }
  uint64_t missing() const override { return missing_; }

  Status reduce(Round& round, Deadline deadline) override {
    if (dead_) return make_error(Errc::kTimeout, "the server did not come back");
    ADDEND_TRY(all_->reduce(round, deadline));
    dead_ = ++rounds_ == last_round_;
    if (!dead_ || (told_ >> worker() & 1) != 0) return {};
    for (const Plane& plane : round)
      std::memset(plane.data, 0x5A, op_bytes(plane.op, plane.lanes) / 2);
    return make_error(Errc::kTimeout, "the server did not come back");
  }
  void miss(uint64_t workers) { missing_ = workers; }

 private:
  std::unique_ptr<Reducer> all_;
  uint32_t last_round_, rounds_ = 0;
  uint64_t told_, missing_ = 0;
  bool dead_ = false;
};

constexpr uint32_t kWorld = 3;
constexpr uint64_t kLanes = 1001;

uint16_t entry(uint64_t i) { return static_cast<uint16_t>(7 * i); }

using Reduce = std::function<Status(Reducer&, Round&)>;

Status reduce(Reducer& reducer, Round& round) { return reducer.reduce(round, far()); }
Status reduce_step(Reducer& reducer, Round& round) {
  const Reducer::Claim claims[] = {{"the weather", 7}};
  return reducer.reduce_step(claims, round, far());
}

// Rounds of two planes, and empty ones between them; every sum is checked.
void reduce_rounds(Reducer& reducer, uint32_t rounds, const Reduce& reduce) {
  std::array<uint16_t, 16> table;
  for (uint64_t i = 0; i < table.size(); ++i)
    table[i] = entry(i);
  for (uint32_t r = 0; r < rounds; ++r) {
    std::vector<float> lanes(kLanes);
    std::iota(lanes.begin(), lanes.end(), static_cast<float>(r * 10 + reducer.worker()));
    std::vector<uint8_t> indices(kLanes + 1, static_cast<uint8_t>(0x11 * (reducer.worker() + r)));
    std::vector<uint16_t> sums(kLanes + 1);
    Round round;
    round.add({Op::kSumF32, kLanes, lanes.data(), nullptr, nullptr});
    round.add({Op::kTableSumU16, kLanes + 1, indices.data(), table.data(), sums.data()});
    const Status status = reduce(reducer, round);
    ASSERT_TRUE(status) << status.error().message;
    for (uint64_t i = 0; i < kLanes; ++i) {
      ASSERT_EQ(lanes[i], static_cast<float>(3 * i + 30 * r + 3)) << "round " << r << " lane " << i;
      ASSERT_EQ(sums[i], entry(r) + entry(r + 1) + entry(r + 2)) << "round " << r << " lane " << i;
    }
    Round empty;
    empty.add({Op::kSumF32, 0, lanes.data(), nullptr, nullptr});
    ASSERT_TRUE(reduce(reducer, empty));
  }
}

// Dies in this round of the primary's.
void finish_after(uint32_t round, const Reduce& reduce) {
  for (uint64_t told = 0; told < 1u << kWorld; ++told) {
    auto primary = create_local_group(kWorld), secondary = create_local_group(kWorld);
    spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
      uint32_t switches = 0;
      auto reducer = create_fallback_reducer(
          std::make_unique<DyingReducer>((*primary)->reducer(w), round, told),
          (*secondary)->reducer(w), [&](const Error&) { ++switches; });
      ASSERT_TRUE(reducer);
      reduce_rounds(**reducer, 6, reduce);
      EXPECT_EQ(switches, 1u);
    });
  }
}

TEST(FallbackReducer, FinishesWhateverTheWorkersWereTold) { finish_after(3, reduce); }

// Claims, planes, claims of an empty round; claims, planes ...
TEST(FallbackReducer, FinishesAStepWhoseClaimsOrPlanesOnlySomeHave) {
  for (const uint32_t round : {3, 4, 5}) {
    SCOPED_TRACE(round);
    finish_after(round, reduce_step);
  }
}

// Starts so many rounds before it waits for the first; every fifth is empty.
void start_ahead(Reducer& reducer, uint32_t rounds, std::size_t ahead) {
  struct OneRound {
    uint64_t number = 0, lane = 0, expected = 0;
    Round round;
  };
  const Reducer::Claim claims[] = {{"the weather", 7}};
  std::deque<OneRound> started;
  for (uint32_t r = 0; r < rounds || !started.empty(); ++r) {
    if (r < rounds) {
      OneRound& one = started.emplace_back();
      one.lane = uint64_t{1} << (8 * reducer.worker() + r % 8);
      one.expected = r % 5 == 4 ? one.lane : uint64_t{0x010101} << r % 8;
      one.round.add({Op::kOrU64, r % 5 == 4 ? 0u : 1u, &one.lane, nullptr, nullptr});
      const auto number =
          r % 3 == 0 ? reducer.start_step(claims, one.round) : reducer.start(one.round);
      ASSERT_TRUE(number) << number.error().message;
      one.number = *number;
      if (started.size() < ahead) continue;
    }
    OneRound& oldest = started.front();
    while (true) {
      const Result<bool> done = reducer.wait(oldest.number, far());
      ASSERT_TRUE(done) << done.error().message;
      if (*done) break;
    }
    ASSERT_EQ(oldest.lane, oldest.expected) << "round " << r;
    started.pop_front();
  }
}

// Each has started another number of rounds when it hears that the first group is gone.
TEST(FallbackReducer, HasRoundsUnderWayInOneOrderOnceTheFirstIsGone) {
  for (const uint32_t last : {1, 2, 3, 4, 8}) {
    for (uint64_t told = 0; told < 1u << kWorld; ++told) {
      SCOPED_TRACE("round " + std::to_string(last) + ", told " + std::to_string(told));
      auto primary = create_local_group(kWorld);
      Wires wires(kWorld);
      wires.on_all([&](uint32_t w) {
        auto reducer = create_fallback_reducer(
            std::make_unique<DyingReducer>((*primary)->reducer(w), last, told),
            *mesh::MeshReducer::create(wires.take(w), {w, 0}));
        EXPECT_FALSE((*reducer)->can_wake());
        start_ahead(**reducer, 20, 1 + 2 * w);
        EXPECT_TRUE((*reducer)->can_wake());
      });
    }
  }
}

// Whoever has the claims' sum has nothing more to ask for; the others would ask the fallback alone,
// until their deadline.
TEST(FallbackReducer, TellsAllWorkersThatClaimsDifferWhoeverHeardItFromTheServer) {
  for (uint64_t told = 0; told < 1u << kWorld && !::testing::Test::HasFailure(); ++told) {
    SCOPED_TRACE(told);
    auto primary = create_local_group(kWorld), secondary = create_local_group(kWorld);
    spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
      auto reducer =
          create_fallback_reducer(std::make_unique<DyingReducer>((*primary)->reducer(w), 1, told),
                                  (*secondary)->reducer(w));
      const Reducer::Claim claims[] = {{"the weather", w == 2 ? 8u : 7u}};
      uint64_t lane = 1;
      Round round;
      round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      const Status status = (*reducer)->reduce_step(claims, round, deadline);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
      EXPECT_NE(status.error().message.find("the weather"), std::string::npos);
      // What others did after that is not known.
      const Status later = (*reducer)->reduce(round, far());
      ASSERT_FALSE(later);
      EXPECT_EQ(later.error().code, Errc::kUnavailable);
    });
  }
}

TEST(FallbackReducer, DoesNotGuessWhatASumWithoutSomeWorkersWouldHaveBeen) {
  auto primary = create_local_group(kWorld), secondary = create_local_group(kWorld);
  spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
    auto dying = std::make_unique<DyingReducer>((*primary)->reducer(w), 1, 7);
    dying->miss(w == 0 ? 4 : 0);
    auto reducer = create_fallback_reducer(std::move(dying), (*secondary)->reducer(w));
    uint64_t lane = 1;
    Round round;
    round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    ASSERT_TRUE((*reducer)->reduce(round, far()));
    // And stays so: the others may be in another round than this worker.
    for (int call = 0; call < 2; ++call) {
      const Status status = (*reducer)->reduce(round, far());
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kUnavailable);
    }
  });
}

// A server that tells a worker that the first rounds came to these, 0 being sums (which are what it
// brought), and then is gone.
class ToldReducer final : public Reducer {
 public:
  ToldReducer(std::array<uint32_t, 2> place, std::deque<int> told, uint32_t quorum = 0)
      : worker_(place[0]), world_(place[1]), quorum_(quorum), told_(std::move(told)) {}
  uint32_t world() const override { return world_; }
  uint32_t worker() const override { return worker_; }
  uint32_t quorum() const override { return quorum_; }

  Status reduce(Round&, Deadline) override {
    if (told_.empty()) return make_error(Errc::kTimeout, "the server did not come back");
    const int code = told_.front();
    told_.pop_front();
    return code == 0 ? Status() : make_error(static_cast<Errc>(code), "the server said so");
  }

 private:
  uint32_t worker_, world_, quorum_;
  std::deque<int> told_;
};

// Several rounds of one lane, every second one the first of a step, and an empty one behind them.
class ManyRounds {
 public:
  static constexpr uint32_t kRounds = 5;

  explicit ManyRounds(Reducer& reducer) : reducer_(reducer) {
    for (uint32_t r = 0; r < kRounds; ++r) {
      lanes_[r] = uint64_t{1} << (8 * reducer.worker() + r);
      rounds_[r].add({Op::kOrU64, r + 1 == kRounds ? 0u : 1u, &lanes_[r], nullptr, nullptr});
    }
  }
  Result<uint64_t> start(uint32_t r) {
    const Reducer::Claim claims[] = {{"the weather", 7}};
    return r % 2 == 1 ? reducer_.start_step(claims, rounds_[r]) : reducer_.start(rounds_[r]);
  }
  uint64_t lane(uint32_t r) const { return lanes_[r]; }
  Round& round(uint32_t r) { return rounds_[r]; }

 private:
  Reducer& reducer_;
  std::array<uint64_t, kRounds> lanes_{};
  std::array<Round, kRounds> rounds_;
};

// Worker 0 waits for its newest round first, the others for their oldest.
TEST(FallbackReducer, MovesTheSameRoundsWhicheverAWorkerWaitsForFirst) {
  Wires wires(kWorld);
  wires.on_all([&](uint32_t w) {
    auto reducer = create_fallback_reducer(
        std::make_unique<ToldReducer>(std::array{w, kWorld}, std::deque<int>()),
        *mesh::MeshReducer::create(wires.take(w), {w, 0}));
    ManyRounds rounds(**reducer);
    for (uint32_t r = 0; r < ManyRounds::kRounds; ++r)
      ASSERT_EQ(*rounds.start(r), r);
    for (uint32_t i = 0; i < ManyRounds::kRounds; ++i) {
      const uint32_t r = w == 0 ? ManyRounds::kRounds - 1 - i : i;
      Result<bool> done = false;
      while (done && !*done)
        done = (*reducer)->wait(r, far());
      ASSERT_TRUE(done) << done.error().message;
      if (r + 1 < ManyRounds::kRounds) {
        ASSERT_EQ(rounds.lane(r), uint64_t{0x010101} << r) << "round " << r;
      }
    }
  });
}

// The others may still be in the round that failed.
TEST(Reducer, DoesNoRoundBehindOneThatFailed) {
  ToldReducer reducer({0, 1}, {static_cast<int>(Errc::kTimeout), 0, 0});
  ManyRounds rounds(reducer);
  EXPECT_EQ(*rounds.start(0), 0u);
  EXPECT_EQ(*rounds.start(2), 1u);
  EXPECT_EQ(reducer.wait(0, far()).error().code, Errc::kTimeout);
  EXPECT_EQ(reducer.wait(1, far()).error().code, Errc::kUnavailable);
  EXPECT_EQ(rounds.start(1).error().code, Errc::kUnavailable);
}

// Does rounds in the order of their starts; whatever happened before a wait, it goes on.
class ForgetfulReducer final : public Reducer {
 public:
  explicit ForgetfulReducer(std::function<Status()> call) : call_(std::move(call)) {}
  uint32_t world() const override { return 1; }
  uint32_t worker() const override { return 0; }
  Status reduce(Round&, Deadline) override { return call_(); }
  Result<uint64_t> start(Round&) override { return next_number_++; }
  Result<uint64_t> start_step(std::span<const Claim>, Round&) override { return next_number_++; }
  Result<bool> wait(uint64_t number, Deadline) override {
    bool failed = false;
    for (; done_ < number; ++done_)
      failed = !call_() || failed;
    ++done_;
    if (failed) return make_error(Errc::kUnavailable, "an earlier round failed");
    ADDEND_TRY(call_());
    return true;
  }
  void abandon() override {}

 private:
  std::function<Status()> call_;
  uint64_t done_ = 0;
};

// One that fails in one of its calls and would go on: it is not asked again.
TEST(FallbackReducer, IsBrokenForGoodByARoundThatOverlapped) {
  enum class How { kInOrder, kNewestFirst, kAbandoned };
  for (const How how : {How::kInOrder, How::kNewestFirst, How::kAbandoned}) {
    SCOPED_TRACE(static_cast<int>(how));
    uint32_t calls = 0;
    bool fails = false;
    auto forgetful = std::make_unique<ForgetfulReducer>([&]() -> Status {
      ++calls;
      return std::exchange(fails, false) ? make_error(Errc::kTimeout, "no answer") : Status();
    });
    auto reducer = create_fallback_reducer(
        std::make_unique<ToldReducer>(std::array{0u, 1u}, std::deque<int>()), std::move(forgetful));
    ManyRounds rounds(**reducer);
    for (uint32_t r = 0; r < 3; ++r)
      ASSERT_EQ(*rounds.start(r), r);
    EXPECT_TRUE((*reducer)->wait(0, far()));
    fails = how != How::kAbandoned;
    const uint32_t before = calls + (fails ? 1 : 0);
    if (how == How::kAbandoned) (*reducer)->abandon();
    if (how == How::kInOrder) {
      EXPECT_EQ((*reducer)->wait(1, far()).error().code, Errc::kTimeout);
    }
    const auto expect_broken = [&](const auto& result) {
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code, Errc::kUnavailable);
    };
    expect_broken((*reducer)->wait(2, far()));
    expect_broken(rounds.start(3));
    expect_broken(rounds.start(4));
    expect_broken((*reducer)->reduce(rounds.round(0), far()));
    EXPECT_EQ(calls, before);
  }
}

// The other may be at either of the two, and must not wait for a worker that has given up.
TEST(FallbackReducer, LeavesBothGroupsWhenItIsAbandonedBeforeRoundsOverlap) {
  auto primary = create_local_group(2), secondary = create_local_group(2);
  spawn_workers(2, {}, [&](uint32_t w, Reducer&) {
    Errc why{};
    auto reducer = create_fallback_reducer((*primary)->reducer(w), (*secondary)->reducer(w),
                                           [&](const Error& error) { why = error.code; });
    uint64_t lane = 1;
    Round round;
    round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    if (w == 1) {
      EXPECT_TRUE((*reducer)->start(round));
      return (*reducer)->abandon();
    }
    const Status status = (*reducer)->reduce(round, Clock::now() + std::chrono::seconds(10));
    ASSERT_FALSE(status);
    EXPECT_EQ(why, Errc::kUnavailable) << "of the first group";
    EXPECT_EQ(status.error().code, Errc::kUnavailable) << status.error().message;
  });
}

// Counts how often it is woken.
class WokenReducer final : public Reducer {
 public:
  explicit WokenReducer(uint32_t& wakes) : wakes_(wakes) {}
  uint32_t world() const override { return 1; }
  uint32_t worker() const override { return 0; }
  Status reduce(Round&, Deadline) override { return {}; }
  void wake() override { ++wakes_; }

 private:
  uint32_t& wakes_;
};

TEST(FallbackReducer, PassesOnAWakeThatCameBeforeRoundsMoved) {
  for (const bool late : {false, true}) {
    uint32_t wakes = 0;
    auto reducer = create_fallback_reducer(
        std::make_unique<ToldReducer>(std::array{0u, 1u}, std::deque<int>()),
        std::make_unique<WokenReducer>(wakes));
    ManyRounds rounds(**reducer);
    ASSERT_TRUE(rounds.start(0));
    if (!late) (*reducer)->wake();
    ASSERT_TRUE(rounds.start(1));
    if (late) (*reducer)->wake();
    EXPECT_TRUE((*reducer)->wait(0, far()));
    EXPECT_EQ(wakes, late ? 1u : 0u) << "a round was started after it, or none";
  }
}

constexpr int kChanged = static_cast<int>(Errc::kChanged);

TEST(FallbackReducer, BeginsAStepAgainThatARestartEndedForAll) {
  for (uint64_t told = 0; told < 1u << kWorld; ++told) {
    SCOPED_TRACE(told);
    auto secondary = create_local_group(kWorld);
    spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
      const bool heard = (told >> w & 1) != 0;
      auto reducer = create_fallback_reducer(
          std::make_unique<ToldReducer>(std::array{w, kWorld},
                                        heard ? std::deque{kChanged} : std::deque<int>()),
          (*secondary)->reducer(w));
      uint64_t lane = 0;
      Round round;
      round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
      if (heard) {
        EXPECT_EQ((*reducer)->reduce(round, far()).error().code, Errc::kChanged);
      }
      lane = uint64_t{1} << w;
      const Status status = (*reducer)->reduce(round, far());
      // Others are in the step that has ended for some.
      if (told != 0 && told != low_mask(kWorld)) {
        ASSERT_FALSE(status);
        EXPECT_EQ(status.error().code, Errc::kUnavailable);
        return;
      }
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_EQ(lane, low_mask(kWorld));
    });
  }
}

// The server restarts in the first round, of which all have heard, and goes when it has told some
// the sums of the second.
TEST(FallbackReducer, SharesSumsWithThoseWhoseLastRoundHadToBeRepeated) {
  for (uint64_t ahead = 0; ahead < 1u << kWorld; ++ahead) {
    SCOPED_TRACE(ahead);
    auto secondary = create_local_group(kWorld);
    spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
      const bool is_ahead = (ahead >> w & 1) != 0;
      auto reducer = create_fallback_reducer(
          std::make_unique<ToldReducer>(std::array{w, kWorld},
                                        is_ahead ? std::deque{kChanged, 0} : std::deque{kChanged}),
          (*secondary)->reducer(w));
      uint64_t lane = 5;
      Round round;
      round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
      EXPECT_EQ((*reducer)->reduce(round, far()).error().code, Errc::kChanged);
      for (const uint64_t own : {uint64_t{5}, uint64_t{1} << w}) {
        lane = own;
        const Status status = (*reducer)->reduce(round, far());
        ASSERT_TRUE(status) << status.error().message;
        EXPECT_EQ(lane, own == 5 ? 5 : low_mask(kWorld));
      }
    });
  }
}

// What went wrong there may have been so for long, or is this worker's alone.
TEST(FallbackReducer, LeavesWhatDoesNotEndThePrimaryAsItIs) {
  for (const auto& [code, quorum] : {std::pair(Errc::kUndecodable, 0), {Errc::kMismatch, 1}}) {
    auto secondary = create_local_group(1);
    auto reducer =
        create_fallback_reducer(std::make_unique<ToldReducer>(
                                    std::array{0u, 1u}, std::deque{static_cast<int>(code)}, quorum),
                                (*secondary)->reducer(0));
    uint64_t lane = 1;
    Round round;
    round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    EXPECT_EQ((*reducer)->reduce(round, far()).error().code, code);
    EXPECT_EQ((*reducer)->reduce(round, far()).error().code, Errc::kUnavailable);
  }
}

// Worker 2 cannot go on, and has no planes.
TEST(FallbackReducer, NamesTheClaimThatDiffersBeforePlanesDo) {
  auto secondary = create_local_group(kWorld);
  spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
    auto reducer = create_fallback_reducer(
        std::make_unique<ToldReducer>(std::array{w, kWorld}, std::deque<int>()),
        (*secondary)->reducer(w));
    const Reducer::Claim claims[] = {{"the weather", w == 2 ? 8u : 7u}};
    uint64_t lane = 1;
    Round round;
    if (w != 2) round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    const Status status = (*reducer)->reduce_step(claims, round, far());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch);
    EXPECT_NE(status.error().message.find("the weather"), std::string::npos)
        << status.error().message;
  });
}

// A group that does not look at what it is given: planes of other workers may be shorter.
std::unique_ptr<Reducer> blind(std::shared_ptr<Reducer> group) {
  const auto add = [group](Round& round, Deadline deadline) -> Status {
    for (const Plane& plane : round) {
      std::vector<uint64_t> words(512);
      const uint64_t bytes = op_bytes(plane.op, plane.lanes);
      std::memcpy(words.data(), plane.data, bytes);
      Round all;
      all.add({plane.op, words.size() * sizeof(uint64_t) / op_bytes(plane.op, 1), words.data(),
               nullptr, nullptr});
      ADDEND_TRY(group->reduce(all, deadline));
      std::memcpy(plane.data, words.data(), bytes);
    }
    return {};
  };
  return *create_custom_reducer({group->world(), group->worker()}, add);
}

// A server that tells some workers the sums of the first round (which are what they brought), and
// of the next one some that planes differ; it is gone for the others.
class DifferingReducer final : public Reducer {
 public:
  DifferingReducer(uint32_t worker, bool ahead, bool told)
      : worker_(worker), ahead_(ahead), told_(told) {}
  uint32_t world() const override { return kWorld; }
  uint32_t worker() const override { return worker_; }

  Status reduce(Round&, Deadline) override {
    if (std::exchange(ahead_, false)) return {};
    if (told_) return make_error(Errc::kMismatch, "worker 2 brought planes of another shape");
    return make_error(Errc::kTimeout, "the server did not come back");
  }

 private:
  uint32_t worker_;
  bool ahead_, told_;
};

// Rounds of so many lanes, until one fails; the last one must.
using Lanes = std::function<uint64_t(uint32_t worker, uint32_t round)>;

void expect_mismatch(uint64_t ahead, uint64_t told, uint32_t rounds, const Lanes& lanes) {
  SCOPED_TRACE("ahead " + std::to_string(ahead) + ", told " + std::to_string(told));
  auto secondary = create_local_group(kWorld);
  spawn_workers(kWorld, {}, [&](uint32_t w, Reducer&) {
    const bool is_ahead = (ahead >> w & 1) != 0, is_told = (told >> w & 1) != 0;
    auto reducer = create_fallback_reducer(std::make_unique<DifferingReducer>(w, is_ahead, is_told),
                                           blind((*secondary)->reducer(w)));
    Status status;
    for (uint32_t r = 0; r < rounds && status; ++r) {
      std::vector<uint64_t> words(lanes(w, r), 1);
      Round round;
      round.add({Op::kOrU64, words.size(), words.data(), nullptr, nullptr});
      status = (*reducer)->reduce(round, far());
    }
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
  });
}

TEST(FallbackReducer, TellsThatPlanesDifferWhereTheFallbackDoesNotLook) {
  for (uint64_t told = 0; told < 1u << kWorld; ++told)
    expect_mismatch(0, told, 1, [](uint32_t w, uint32_t) { return w == 2 ? 3 : 2; });
}

// Those behind are given the sums of the round before, and then bring other planes, too.
TEST(FallbackReducer, TellsThatPlanesDifferInARoundThatSomeHaveYetToBegin) {
  for (uint64_t ahead = 1; ahead < 1u << kWorld; ++ahead)
    expect_mismatch(ahead, ahead, 2,
                    [](uint32_t w, uint32_t r) { return w == 2 && r == 1 ? 3 : 2; });
}

// What they are given would be sums of other planes.
TEST(FallbackReducer, TellsThatPlanesDifferInARoundThatOnlySomeHaveTheSumsOf) {
  for (uint64_t ahead = 1; ahead + 1 < 1u << kWorld; ++ahead)
    expect_mismatch(ahead, ahead, 2, [&](uint32_t w, uint32_t r) {
      return r == 0 && (ahead >> w & 1) == 0 ? 3 : 2;
    });
}

TEST(FallbackReducer, WantsTheSameWorkersInBothGroups) {
  auto three = create_local_group(3), two = create_local_group(2);
  EXPECT_FALSE(create_fallback_reducer((*three)->reducer(0), (*two)->reducer(0)));
  EXPECT_FALSE(create_fallback_reducer((*three)->reducer(1), (*three)->reducer(2)));
  EXPECT_FALSE(create_fallback_reducer((*two)->reducer(1), nullptr));
}

}  // namespace
}  // namespace addend
