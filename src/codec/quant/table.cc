// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

namespace addend::quant {
namespace {

// exp for y <= 0, from operations that are the same on every machine. Error below 2e-16 * (2 - y).
double exp_of(double y) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42feep-1;  // few enough bits that k * kLn2High is exact
  constexpr double kLn2Low = 1.9082149292705877e-10;
  const double k = std::floor(y * kLog2E + 0.5);
  const double r = (y - k * kLn2High) - k * kLn2Low;
  double sum = 1;
  for (int n = 13; n > 0; --n)
    sum = 1 + sum * r / n;
  return std::ldexp(sum, static_cast<int>(k));
}

double density(double x) {
  constexpr double kInverseRootTwoPi = 0.3989422804014327;
  return kInverseRootTwoPi * exp_of(-0.5 * x * x);
}

// Chance that a standard normal exceeds x, given its density there.
double upper_tail(double x, double density_at_x) {
  if (x < 0) return 1 - upper_tail(-x, density_at_x);
  if (x < 2) {
    // 1/2 - density * (x + x^3/3 + x^5/(3*5) + ...)
    double term = x;
    double sum = x;
    for (int n = 3; term > 1e-17 * sum; n += 2) {
      term *= x * x / n;
      sum += term;
    }
    return 0.5 - density_at_x * sum;
  }
  // density / (x + 1/(x + 2/(x + 3/(x + ...)))): keeps its relative precision far out, and the
  // depth needed falls as 1/x^2. It starts from the f that solves f = x + n/f.
  const int depth = 8 + static_cast<int>(200 / (x * x));
  double fraction = 0.5 * (x + std::sqrt(x * x + 4 * depth));
  for (int n = depth - 1; n > 0; --n)
    fraction = x + n / fraction;
  return density_at_x / fraction;
}

// The x that a standard normal exceeds with chance q <= 1/2. Halley's step moves by at most 2/x, so
// the crude start is safe.
double upper_quantile(double q) {
  constexpr double kTwoLn2 = 1.3862943611198906;
  double x = std::sqrt(-kTwoLn2 * std::min(0, std::ilogb(q) + 1));
  for (int iteration = 0; iteration < 64; ++iteration) {
    const double at_x = density(x);
    const double excess = (upper_tail(x, at_x) - q) / at_x;
    const double step = 2 * excess / (2 - x * excess);
    x += step;
    if (std::abs(step) <= 1e-15 * (1 + x)) break;
  }
  return std::max(x, 0.0);
}

// C(t) = 2 [(1 + t^2) Q(t) - t phi(t)]
double clipping_error(double half_range) {
  const double at_end = density(half_range);
  const double tail = upper_tail(half_range, at_end);
  return 2 * ((1 + half_range * half_range) * tail - half_range * at_end);
}

// The g+1 points that levels can stand for, and the rounding error between any two of them.
class Grid {
 public:
  Grid(uint32_t granularity, double half_range) : g_(granularity) {
    points_.reserve(g_ + 1);
    for (uint32_t j = 0; j <= g_; ++j) {
      const double x = half_range * (2.0 * j - g_) / g_;
      const double at_x = density(x);
      points_.push_back({x, at_x, upper_tail(x, at_x)});
    }
    // Costs as integers: equal sums are equal in any order of addition, so ties (a table and its
    // mirror image) are ties and no rounding decides them. All costs together stay below t^2.
    unit_ = 0x1p60 / std::max(1.0, half_range * half_range);
  }

  // Integral of (c-x)(x-a) phi(x) over [a, c] = [point i, point j]; i < j. An interval and its
  // mirror image give the same bits, and are evaluated in the upper tail, where differences of
  // tails are precise.
  double error(uint32_t i, uint32_t j) const {
    if (i + j < g_) {
      const uint32_t mirrored = g_ - i;
      i = g_ - j;
      j = mirrored;
    }
    const Point& a = points_[i];
    const Point& c = points_[j];
    return c.x * a.density - a.x * c.density - (1 + a.x * c.x) * (a.tail - c.tail);
  }

  int64_t cost(uint32_t i, uint32_t j) const { return static_cast<int64_t>(unit_ * error(i, j)); }

  double error_of(const std::vector<uint32_t>& levels) const {
    double sum = 0;
    for (size_t k = 1; k < levels.size(); ++k)
      sum += error(levels[k - 1], levels[k]);
    return sum;
  }

 private:
  struct Point {
    double x;
    double density;
    double tail;
  };
  uint32_t g_;
  std::vector<Point> points_;
  double unit_ = 0;
};

// The exact dynamic programme: least[j] after step l is the least cost of levels 0..l with level l
// at point j. It runs to the middle step only, because the upper half of any table is the mirror
// image of a lower half. Level l can only lie in [l, l + slack], which bounds every loop.
class Solver {
 public:
  Solver(uint32_t bits, uint32_t granularity, double half_range)
      : grid_(granularity, half_range),
        g_(granularity),
        middle_(1u << (bits - 1)),
        slack_(granularity + 1 - (1u << bits)),
        before_(granularity + 1, kInfeasible),
        least_(granularity + 1, kInfeasible),
        previous_(size_t{middle_ + 1} * (slack_ + 1)) {}

  std::vector<uint32_t> solve() {
    least_[0] = 0;
    for (uint32_t level = 1; level <= middle_; ++level) {
      before_.swap(least_);
      // Only point 0 holds level 0.
      fill(level, {level, level + slack_}, {level - 1, level == 1 ? 0 : level - 1 + slack_});
    }
    return trace(meeting_point());
  }

  const Grid& grid() const { return grid_; }

 private:
  struct Span {
    uint32_t first;
    uint32_t last;
  };
  static constexpr int64_t kInfeasible = int64_t{1} << 61;

  // Divide and conquer: the cost obeys the quadrangle inequality (for a<b<c<d, crossing intervals
  // cost less than nested ones by (d-c)(b-a) times the mass between), so the best predecessor does
  // not fall as the point rises.
  void fill(uint32_t level, Span points, Span predecessors) {
    const uint32_t j = points.first + (points.last - points.first) / 2;
    int64_t least = std::numeric_limits<int64_t>::max();
    uint32_t best = predecessors.first;
    for (uint32_t i = predecessors.first; i <= std::min(predecessors.last, j - 1); ++i) {
      const int64_t cost = before_[i] + grid_.cost(i, j);
      if (cost <= least) {
        least = cost;
        best = i;
      }
    }
    least_[j] = least;
    previous(level, j) = best;
    if (j > points.first) fill(level, {points.first, j - 1}, {predecessors.first, best});
    if (j < points.last) fill(level, {j + 1, points.last}, {best, predecessors.last});
  }

  // The point of the first level of the upper half.
  uint32_t meeting_point() const {
    int64_t least = std::numeric_limits<int64_t>::max();
    uint32_t best = middle_;
    for (uint32_t j = middle_; j <= middle_ + slack_; ++j) {
      const int64_t cost = least_[j] + before_[g_ - j];
      if (cost <= least) {
        least = cost;
        best = j;
      }
    }
    return best;
  }

  std::vector<uint32_t> trace(uint32_t meeting) {
    std::vector<uint32_t> levels(size_t{2} * middle_);
    uint32_t lower = meeting;
    for (uint32_t level = middle_; level > 0; --level) {
      lower = previous(level, lower);
      levels[level - 1] = lower;
    }
    uint32_t upper = g_ - meeting;
    for (uint32_t level = middle_ - 1;; --level) {
      levels[levels.size() - 1 - level] = g_ - upper;
      if (level == 0) return levels;
      upper = previous(level, upper);
    }
  }

  uint32_t& previous(uint32_t level, uint32_t j) {
    return previous_[size_t{level} * (slack_ + 1) + (j - level)];
  }

  Grid grid_;
  uint32_t g_;
  uint32_t middle_;
  uint32_t slack_;
  std::vector<int64_t> before_;  // of the level before
  std::vector<int64_t> least_;
  std::vector<uint32_t> previous_;
};

Status check(uint32_t bits, uint32_t granularity, double clipped) {
  if (bits < 1 || bits > kMaxBits) {
    return make_error(Errc::kInvalidArgument,
                      "quant: bits must be 1..8, got " + std::to_string(bits));
  }
  const uint32_t least = (1u << bits) - 1;
  if (granularity < least || granularity > kMaxGranularity) {
    return make_error(Errc::kInvalidArgument,
                      "quant: granularity must be " + std::to_string(least) + ".." +
                          std::to_string(kMaxGranularity) + " for " + std::to_string(bits) +
                          " bits, got " + std::to_string(granularity));
  }
  // Written so that NaN fails; below 1e-300 the density at the ends is no longer a normal double.
  if (!(clipped >= 1e-300 && clipped < 1)) {
    return make_error(
        Errc::kInvalidArgument,
        "quant: the clipped fraction must be in [1e-300, 1), got " + std::to_string(clipped));
  }
  return {};
}

// REQUIRES: check(bits, granularity, clipped).
Table solved_table(uint32_t bits, uint32_t granularity, double clipped) {
  Table table{bits, granularity, clipped, upper_quantile(clipped / 2), {}, 0, 0};
  Solver solver(bits, granularity, table.half_range);
  table.levels = solver.solve();
  table.rounding_error = solver.grid().error_of(table.levels);
  table.clipping_error = clipping_error(table.half_range);
  return table;
}

// Where the planner stops: at 4 * 2^bits the error is within about 2 % of what any g reaches for a
// hundred workers (7 % for thousands with correlated rounding), and 63 lets the small tables use an
// 8-bit lane at four workers. Levels travel as bytes before they are summed, so 255 is the end.
constexpr uint32_t cap_of(uint32_t bits) { return std::clamp(4u << bits, 63u, 255u); }

// The error is uneven in g while tables are small, so up to this many bits every g is tried. Larger
// tables are alike up to scale (see Planner::scaled); scanning them takes seconds and gains
// less than 1 %.
constexpr uint32_t kScannedBits = 4;

// p on a grid of eighths of a power of two: 2^-(eighths/8). Its best point is within 0.1 % of the
// least error between points (0.3 % at one bit).
constexpr uint32_t kOctave = 8;
constexpr uint32_t kLastEighth = 64 * kOctave;  // clipping less than 2^-64 gains nothing anywhere
double clipped_at(uint32_t eighths) {
  double root = 1;
  for (uint32_t bit = 1, power = kOctave / 2; power > 0; power /= 2, ++bit) {
    double factor = 0.5;
    for (uint32_t k = 0; k < bit; ++k)
      factor = std::sqrt(factor);
    if ((eighths & power) != 0) root *= factor;
  }
  return std::ldexp(root, -static_cast<int>(eighths / kOctave));
}

// Tables that differ by less are equal: the smaller g, which comes first, wins. Grids of g and 2g
// hold the same tables, so exact ties are common.
constexpr double kTie = 1e-6;

// Minimises weight * V + C over (g, p).
class Planner {
 public:
  Planner(uint32_t bits, double weight) : bits_(bits), weight_(weight) {}

  // REQUIRES: 2^bits-1 <= largest_granularity.
  Table plan(uint32_t largest_granularity) {
    Candidate best;
    for (const Candidate& candidate : shortlist(std::min(largest_granularity, cap_of(bits_)))) {
      const Candidate next = refine(candidate);
      if (next.error < best.error * (1 - kTie)) best = next;
    }
    return solved_table(bits_, best.granularity, clipped_at(best.eighths));
  }

 private:
  struct Candidate {
    uint32_t granularity = 0;
    uint32_t eighths = 0;
    double error = std::numeric_limits<double>::infinity();
  };

  // The few that refining p can still make the best, by rising g.
  std::vector<Candidate> shortlist(uint32_t last) {
    return bits_ > kScannedBits ? scaled(last) : scanned(last, 6);
  }

  std::vector<Candidate> scanned(uint32_t last, size_t kept) {
    std::vector<Candidate> candidates;
    for (uint32_t g = (1u << bits_) - 1; g <= last; ++g) {
      candidates.push_back(scan(g));
      least_ = std::min(least_, candidates.back().error);
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.error < b.error; });
    candidates.resize(std::min(candidates.size(), kept));
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.granularity < b.granularity; });
    return candidates;
  }

  // With s times the gaps and s times the g, the levels stand s times denser and V falls by s^2,
  // for the same p. So the plan of a small table, V weighing as much less, tells that of a large
  // one.
  std::vector<Candidate> scaled(uint32_t last) const {
    const uint32_t gaps = (1u << bits_) - 1;
    const uint32_t small_gaps = (1u << kScannedBits) - 1;
    const uint32_t small_last = last * small_gaps / gaps;
    const double scale = static_cast<double>(gaps) / small_gaps;
    Planner small(kScannedBits, weight_ / (scale * scale));
    std::vector<Candidate> candidates = small.scanned(small_last, 3);
    const Candidate largest = candidates.back();
    for (Candidate& candidate : candidates) {
      const auto g = static_cast<uint32_t>(std::lround(scale * candidate.granularity));
      candidate.granularity = std::clamp(g, gaps, last);
    }
    // Rounding must not cost the last few g where the lane is tight and they are the best.
    if (largest.granularity == small_last) candidates.push_back({last, largest.eighths, 0});
    return candidates;
  }

  Candidate evaluate(uint32_t granularity, uint32_t eighths) const {
    const Table table = solved_table(bits_, granularity, clipped_at(eighths));
    return {granularity, eighths, weight_ * table.rounding_error + table.clipping_error};
  }

  // Whole octaves of p, from the first at which clipping alone does not already lose to three
  // octaves past the best: the error has several minima in p, of which the first is the useful one.
  Candidate scan(uint32_t granularity) {
    while (first_ < kLastEighth &&
           clipping_error(upper_quantile(clipped_at(first_) / 2)) >= least_) {
      first_ += kOctave;
    }
    Candidate best;
    for (uint32_t eighths = first_; eighths <= kLastEighth; eighths += kOctave) {
      const Candidate next = evaluate(granularity, eighths);
      if (next.error < best.error) best = next;
      if (eighths >= best.eighths + 3 * kOctave) break;
    }
    return best;
  }

  Candidate refine(const Candidate& coarse) const {
    Candidate best = evaluate(coarse.granularity, coarse.eighths);
    for (uint32_t step = kOctave / 2; step > 0; step /= 2) {
      const uint32_t center = best.eighths;
      for (const uint32_t eighths : {center - step, center + step}) {
        const Candidate next = evaluate(best.granularity, eighths);
        if (next.error < best.error) best = next;
      }
    }
    return best;
  }

  uint32_t bits_;
  double weight_;
  double least_ = std::numeric_limits<double>::infinity();
  uint32_t first_ = kOctave;
};

// The best table with sums up to `limit`. REQUIRES: bits and world are in their ranges, and fit.
TableChoice cached_choice(uint32_t bits, uint32_t world, bool correlated, Lane lane,
                          uint64_t limit) {
  static std::mutex mutex;
  static std::map<std::tuple<uint32_t, uint32_t, bool, uint64_t>, Table> cache;
  // Held while planning: workers of one process that start together then plan once.
  const std::lock_guard lock(mutex);
  const auto key = std::make_tuple(bits, world, correlated, limit);
  auto found = cache.find(key);
  if (found == cache.end()) {
    Planner planner(bits, rounding_weight(world, correlated));
    found = cache.emplace(key, planner.plan(static_cast<uint32_t>(limit / world))).first;
  }
  return {found->second, lane};
}

}  // namespace

double rounding_weight(uint32_t world, bool correlated) {
  const double n = world;
  if (!correlated || world == 1) return 1 / n;
  // Correlated rounding leaves V/n^2 where workers agree and about 0.55 V/n where they do not,
  // clipping C and C/n. The planner weighs the second case at this share of the first: few workers
  // (replicas of a large batch) tend to agree more.
  const double share = std::min(0.1 * n, 0.8);
  return (1 / (n * n) + share * 0.55 / n) / (1 + share / n);
}

double normal_quantile(double probability) {
  return probability < 0.5 ? -upper_quantile(probability) : upper_quantile(1 - probability);
}

Result<Table> optimal_table(uint32_t bits, uint32_t granularity, double clipped) {
  ADDEND_TRY(check(bits, granularity, clipped));
  return solved_table(bits, granularity, clipped);
}

Result<Table> uniform_table(uint32_t bits, double clipped) {
  const uint32_t granularity = bits <= kMaxBits ? (1u << bits) - 1 : 0;
  // The only table of this granularity.
  return optimal_table(bits, granularity, clipped);
}

Table published_table() {
  // arXiv 2302.08545 and its public code; 0.1 % above the optimum because the authors' search only
  // sees symmetric tables.
  return *table_of_levels({0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30}, 1.0 / 32);
}

Result<Table> table_of_levels(std::vector<uint32_t> levels, double clipped) {
  if (levels.size() < 2 || levels.size() > (1u << kMaxBits) || !std::has_single_bit(levels.size()))
    return make_error(Errc::kInvalidArgument, "quant: a table has 2, 4, 8, .. 256 levels, got " +
                                                  std::to_string(levels.size()));
  const bool increasing =
      std::adjacent_find(levels.begin(), levels.end(),
                         [](uint32_t a, uint32_t b) { return a >= b; }) == levels.end();
  if (levels.front() != 0 || !increasing)
    return make_error(Errc::kInvalidArgument, "quant: levels must increase strictly from 0");
  const auto bits = static_cast<uint32_t>(std::countr_zero(levels.size()));
  ADDEND_TRY(check(bits, levels.back(), clipped));
  Table table{bits, levels.back(), clipped, upper_quantile(clipped / 2), std::move(levels), 0, 0};
  table.rounding_error = Grid(table.granularity, table.half_range).error_of(table.levels);
  table.clipping_error = clipping_error(table.half_range);
  return table;
}

uint64_t lane_limit(Lane lane) {
  constexpr std::array<uint64_t, 3> kLimits = {255, 65535, (uint64_t{1} << 31) - 1};
  return kLimits[static_cast<uint8_t>(lane)];
}

Result<Lane> narrowest_lane(uint32_t granularity, uint32_t world) {
  if (world < 1 || world > kMaxWorld) {
    return make_error(
        Errc::kInvalidArgument,
        "quant: world must be 1.." + std::to_string(kMaxWorld) + ", got " + std::to_string(world));
  }
  for (const Lane lane : {Lane::kU8, Lane::kU16, Lane::kI32}) {
    if (uint64_t{world} * granularity <= lane_limit(lane)) return lane;
  }
  return make_error(Errc::kCapacity, "quant: sums of " + std::to_string(world) +
                                         " workers' levels up to " + std::to_string(granularity) +
                                         " do not fit 31 bits");
}

Result<TableChoice> choose_table(uint32_t bits, uint32_t world, bool correlated) {
  const uint32_t least = bits <= kMaxBits ? (1u << bits) - 1 : 0;
  ADDEND_TRY(check(bits, least, 0.5));
  const Result<Lane> lane = narrowest_lane(least, world);
  ADDEND_TRY(lane);
  return cached_choice(bits, world, correlated, *lane, lane_limit(*lane));
}

Result<TableChoice> choose_table_within(uint32_t bits, uint32_t world, bool correlated,
                                        uint64_t limit) {
  const uint32_t least = bits <= kMaxBits ? (1u << bits) - 1 : 0;
  ADDEND_TRY(check(bits, least, 0.5));
  ADDEND_TRY(narrowest_lane(least, world));
  if (uint64_t{world} * least > std::min(limit, lane_limit(Lane::kU16))) {
    return make_error(Errc::kCapacity, "quant: sums of " + std::to_string(world) +
                                           " workers' levels up to " + std::to_string(least) +
                                           " do not fit 16 bits");
  }
  return cached_choice(bits, world, correlated, Lane::kU16, limit);
}

}  // namespace addend::quant
