// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/lowrank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/chunks.h"
#include "codec/convert.h"
#include "codec/dense/dense.h"
#include "codec/feedback.h"
#include "codec/lowrank/basis.h"
#include "codec/lowrank/factor_sum.h"
#include "codec/lowrank/kernels.h"
#include "codec/lowrank/matrices.h"
#include "codec/readable_residual.h"
#include "wire/element.h"

namespace addend::lowrank {
namespace {

constexpr uint64_t kUsualRank = 4, kMostRank = 64;
// One row in so many is sampled for the report, others each step.
constexpr uint64_t kSampleEvery = 64;

// With M a worker's gradient and residual: the sum of M R, with an orthonormal R of the last step,
// becomes an orthonormal L; the sum of M' L becomes R; L R' is the result.
class LowrankCodec final : public FeedbackCodec, public ReadableResidual {
 public:
  LowrankCodec(const Layout& layout, uint64_t rank, Factors factors, Division division)
      : FeedbackCodec(layout), rank_(rank), factors_(factors), division_(std::move(division)) {}

  Status set_up() {
    ADDEND_TRY(make_sums());
    ADDEND_TRY(residual_.reserve(Feedback::kFloat, division_.matrix_elements, 0));
    ADDEND_TRY(others_.reserve(division_.other_elements * dtype_bytes(layout().dtype)));
    ADDEND_TRY(left_.reserve(division_.left_elements * 4));
    for (Buffer* right : {&last_right_, &own_right_, &right_})
      ADDEND_TRY(right->reserve(division_.right_elements * 4));
    ADDEND_TRY(reserve_scratch());
    lost_.resize(division_.matrices.size());
    learnt_.resize(division_.matrices.size());
    samples_.resize(division_.row_pieces.size());
    std::fill(last_right_.as<float>(), last_right_.as<float>() + division_.right_elements, 0.0f);
    for (const Matrix& matrix : division_.matrices) {
      complete(columns_of(last_right_, matrix), stream(matrix));
      learn(matrix);
    }
    return {};
  }

  std::string_view next_mode() const override { return "lowrank"; }
  uint64_t memory_bytes() const override {
    uint64_t bytes =
        residual_.memory_bytes() + left_sum_->memory_bytes() + right_sum_->memory_bytes();
    for (const Buffer* buffer : {&others_, &left_, &last_right_, &own_right_, &right_})
      bytes += buffer->capacity();
    for (const Scratch& one : scratch_)
      bytes += one.strips.capacity() + one.weights.capacity();
    return bytes;
  }
  Status add_residual(float* to) const override {
    for (const Matrix& matrix : division_.matrices)
      residual_.add_to(0, matrix.residual, matrix.count(), to + matrix.begin);
    return {};
  }

 private:
  // A thread's own.
  struct Scratch {
    Buffer strips;   // rows as f32
    Buffer weights;  // of a few rows
    float* weight() { return weights.as<float>(); }
  };
  // Grows with the threads, and then stays.
  Status reserve_scratch() {
    if (scratch_.size() < loop_threads()) scratch_.resize(loop_threads());
    for (Scratch& one : scratch_) {
      ADDEND_TRY(one.strips.reserve(kRows * kStrip * 4));
      ADDEND_TRY(one.weights.reserve(kRows * rank_ * 4));
    }
    return {};
  }

  // ---- what later steps depend on

  uint64_t base_fingerprint() const override {
    Fingerprint print;
    print.add("lowrank").add(layout()).add(rank_);
    for (const Segment& segment : layout().segments)
      print.add(segment.rows);
    left_sum_->add_plan(print);
    right_sum_->add_plan(print);
    return print.value();
  }
  void add_plan(Fingerprint& print) const override {
    for (const uint64_t digest : learnt_)
      print.add(digest);
  }
  uint64_t segment_fingerprint(uint64_t segment) const override {
    const Segment owner = segment_at(segment);
    Fingerprint print;
    print.add("lowrank segment").add(layout().seed).add(owner.id).add(owner.count).add(owner.rows);
    return print.add(static_cast<uint64_t>(layout().dtype)).add(rank_).value();
  }

  // A left factor is a basis in the end, and nothing that it loses is missed. What a right one
  // loses goes to the residual.
  Status make_sums() {
    FactorShape left{"left", {}, Feedback::kNone}, right{"right", {}, Feedback::kFloat};
    for (const Matrix& matrix : division_.matrices) {
      const uint64_t id = layout().segments[matrix.segment].id;
      left.parts.push_back({id, rank_ * matrix.rows});
      right.parts.push_back({id, rank_ * matrix.columns});
    }
    auto sum = create_factor_sum(factors_, layout(), left);
    ADDEND_TRY(sum);
    left_sum_ = std::move(*sum);
    sum = create_factor_sum(factors_, layout(), right);
    ADDEND_TRY(sum);
    right_sum_ = std::move(*sum);
    return {};
  }

  const Matrix* matrix_of(uint64_t segment) const {
    const auto& all = division_.matrices;
    const auto found = std::lower_bound(
        all.begin(), all.end(), segment,
        [](const Matrix& matrix, uint64_t number) { return matrix.segment < number; });
    return found != all.end() && found->segment == segment ? &*found : nullptr;
  }
  bool keeps(uint64_t segment) const override { return matrix_of(segment) != nullptr; }
  Residual::Range segment_range(uint64_t segment) const override {
    const Matrix* matrix = matrix_of(segment);
    if (matrix == nullptr) return {};
    return {matrix->residual, matrix->count(), 0, 0};
  }
  uint64_t learnt_bytes(uint64_t segment) const override {
    const Matrix* matrix = matrix_of(segment);
    return matrix == nullptr ? 0 : sizeof(uint64_t) + rank_ * matrix->columns * 4;
  }
  Status save_learnt(uint64_t segment, uint8_t* to) const override {
    const Matrix* matrix = matrix_of(segment);
    if (matrix == nullptr) return {};
    const uint64_t world = layout().world;
    std::memcpy(to, &world, sizeof(world));
    std::memcpy(to + sizeof(world), last_right_.as<float>() + matrix->right,
                rank_ * matrix->columns * 4);
    return {};
  }
  // In another world some workers have no state: all begin with the factor that those have.
  Status load_learnt(uint64_t segment, const uint8_t* from) override {
    const Matrix* matrix = matrix_of(segment);
    if (matrix == nullptr) return {};
    uint64_t world = 0;
    std::memcpy(&world, from, sizeof(world));
    if (world == layout().world) {
      std::memcpy(last_right_.as<float>() + matrix->right, from + sizeof(world),
                  rank_ * matrix->columns * 4);
    }
    learn(*matrix);
    return {};
  }
  // All workers have the same factor, or none of their sums means anything.
  void learn(const Matrix& matrix) {
    Fingerprint print;
    const auto* words = last_right_.as<uint32_t>() + matrix.right;
    for (uint64_t i = 0; i < rank_ * matrix.columns; ++i)
      print.add(uint64_t{words[i]});
    learnt_[static_cast<std::size_t>(&matrix - division_.matrices.data())] = print.value();
  }
  uint64_t stream(const Matrix& matrix) const {
    const uint64_t id = layout().segments[matrix.segment].id;
    return Fingerprint().add("lowrank draw").add(layout().seed).add(id).add(step_).value();
  }

  // ---- a step

  Status do_begin(const void* gradient) override {
    gradient_ = gradient;
    waiting_ = Waiting::kNothing;
    draft().mode = "lowrank";
    return {};
  }

  Result<bool> do_round(Round& round) override {
    ADDEND_TRY(reserve_scratch());
    if (waiting_ == Waiting::kNothing) {
      waiting_ = Waiting::kLeft;
      return open_left(round);
    }
    if (waiting_ == Waiting::kLeft) {
      const Result<bool> more = left_sum_->next_round(round);
      ADDEND_TRY(more);
      round.last = false;
      if (*more) return true;
      waiting_ = Waiting::kRight;
      ADDEND_TRY(open_right());
    }
    return right_sum_->next_round(round);
  }

  Result<bool> open_left(Round& round) {
    for_pieces(division_.row_pieces,
               [&](uint64_t p, Scratch& mine) { multiply(division_.row_pieces[p], mine); });
    ADDEND_TRY(left_sum_->begin(step_, left_.as<float>()));
    ADDEND_TRY(left_sum_->next_round(round));
    round.last = false;
    if (division_.other_elements > 0) {
      gather_others();
      round.add(
          {sum_op(layout().dtype), division_.other_elements, others_.as<void>(), nullptr, nullptr});
    }
    return true;
  }

  Status open_right() {
    ADDEND_TRY(left_sum_->finish());
    for_each_chunk(division_.matrices.size(), [&](uint64_t m, uint32_t) {
      const Matrix& matrix = division_.matrices[m];
      lost_[m] = orthonormalise({left_.as<float>() + matrix.left, matrix.rows, rank_}) ? 0 : 1;
    });
    for_pieces(division_.column_pieces, [&](uint64_t p, Scratch& mine) {
      multiply_transposed(division_.column_pieces[p], mine);
    });
    std::memcpy(right_.as<void>(), own_right_.as<void>(), division_.right_elements * 4);
    return right_sum_->begin(step_, right_.as<float>());
  }

  Status do_finish(void* gradient) override {
    ADDEND_TRY(reserve_scratch());
    ADDEND_TRY(right_sum_->finish());
    ADDEND_TRY(right_sum_->take_losses(own_right_.as<float>()));
    for (std::size_t m = 0; m < division_.matrices.size(); ++m) {
      const Matrix& matrix = division_.matrices[m];
      if (!is_finite(columns_of(right_, matrix))) lost_[m] = 1;
      if (lost_[m] != 0) draft().nonfinite += matrix.count();
    }
    for_pieces(division_.row_pieces, [&](uint64_t p, Scratch& mine) { split(p, mine, gradient); });
    for (const Sample& sample : samples_) {  // in their order, whoever was first
      draft().sampled_energy += sample.energy;
      draft().sampled_error += sample.error;
    }
    for_each_chunk(division_.matrices.size(), [&](uint64_t m, uint32_t) {
      if (lost_[m] == 0) keep(division_.matrices[m]);
    });
    scatter_others(gradient);
    ++step_;
    return {};
  }

  // The next step's basis.
  void keep(const Matrix& matrix) {
    const Columns sum = columns_of(right_, matrix);
    complete(sum, stream(matrix));
    std::copy(sum.data, sum.data + rank_ * matrix.columns, last_right_.as<float>() + matrix.right);
    learn(matrix);
  }

  // ---- passes over a matrix: strips of columns, in each all rows of a piece

  template <typename Visit>
  void for_pieces(const std::vector<Piece>& pieces, Visit&& visit) {
    for_each_chunk(pieces.size(), [&](uint64_t p, uint32_t thread) { visit(p, scratch_[thread]); });
  }

  template <typename Visit>
  void for_strips(const Matrix& matrix, Visit&& visit) const {
    for (uint64_t begin = 0; begin < matrix.columns; begin += kStrip)
      visit(begin, std::min(kStrip, matrix.columns - begin));
  }

  // The elements of a row from `begin` on; other types than f32 go through strip number `strip`.
  Row row_at(const Matrix& matrix, uint64_t row, uint64_t begin, uint64_t count, uint64_t strip,
             Scratch& mine) {
    const uint64_t element = row * matrix.columns + begin;
    const float* residual = residual_.values() + matrix.residual + element;
    const DType dtype = layout().dtype;
    const auto* bytes =
        static_cast<const uint8_t*>(gradient_) + (matrix.begin + element) * dtype_bytes(dtype);
    if (dtype == DType::kF32) return {reinterpret_cast<const float*>(bytes), residual};
    float* wide = mine.strips.as<float>() + strip * kStrip;
    convert(dtype, bytes, count, 1, DType::kF32, wide);
    return {wide, residual};
  }

  // left = M last_right
  void multiply(const Piece& piece, Scratch& mine) {
    const Matrix& matrix = division_.matrices[piece.matrix];
    float* left = left_.as<float>() + matrix.left;
    for_strips(matrix, [&](uint64_t begin, uint64_t count) {
      const Factor<const float> columns{last_right_.as<float>() + matrix.right + begin,
                                        matrix.columns, rank_};
      for (uint64_t i = piece.begin; i < piece.end; ++i) {
        multiply_row(row_at(matrix, i, begin, count, 0, mine), count, columns, mine.weight());
        for (uint64_t k = 0; k < rank_; ++k) {
          float& sum = left[k * matrix.rows + i];
          sum = begin == 0 ? mine.weight()[k] : sum + mine.weight()[k];
        }
      }
    });
  }

  // own_right = M' left; zeros where left is not finite.
  void multiply_transposed(const Piece& piece, Scratch& mine) {
    const Matrix& matrix = division_.matrices[piece.matrix];
    const uint64_t count = piece.end - piece.begin;
    float* own = own_right_.as<float>() + matrix.right + piece.begin;
    for (uint64_t k = 0; k < rank_; ++k)
      std::fill_n(own + k * matrix.columns, count, 0.0f);
    if (lost_[piece.matrix] != 0) return;
    for (uint64_t i = 0; i < matrix.rows; i += kRows) {
      const uint64_t n = std::min(kRows, matrix.rows - i);
      Row rows[kRows];
      for (uint64_t r = 0; r < n; ++r) {
        rows[r] = row_at(matrix, i + r, piece.begin, count, r, mine);
        weigh(matrix, i + r, 1, mine.weight() + r * rank_);
      }
      add_rows(rows, n, count, mine.weight(), {own, matrix.columns, rank_});
    }
  }

  // A row of left times `factor`.
  void weigh(const Matrix& matrix, uint64_t row, float factor, float* weights) const {
    const float* left = left_.as<float>() + matrix.left;
    for (uint64_t k = 0; k < rank_; ++k)
      weights[k] = left[k * matrix.rows + row] * factor;
  }

  // The result is left right' times the scale; M - left own_right' stays. Some element was not
  // finite, on whatever worker: none of the result is, and nothing is learnt.
  void split(uint64_t p, Scratch& mine, void* gradient) {
    const Piece& piece = division_.row_pieces[p];
    const Matrix& matrix = division_.matrices[piece.matrix];
    samples_[p] = {};
    if (lost_[piece.matrix] != 0) {
      for (uint64_t i = piece.begin * matrix.columns; i < piece.end * matrix.columns; ++i)
        store_float(layout().dtype, gradient, matrix.begin + i,
                    std::numeric_limits<float>::quiet_NaN());
      return;
    }
    for_strips(matrix, [&](uint64_t begin, uint64_t count) {
      for (uint64_t i = piece.begin; i < piece.end; ++i)
        split_strip({matrix, i, begin, count}, mine, gradient, samples_[p]);
    });
  }

  // A row's part of a strip.
  struct Place {
    const Matrix& matrix;
    uint64_t row, begin, count;
  };
  // What the report says of a piece.
  struct Sample {
    double energy = 0, error = 0;
  };

  void split_strip(const Place& at, Scratch& mine, void* gradient, Sample& sample) {
    const auto& [matrix, i, begin, count] = at;
    const DType dtype = layout().dtype;
    const uint64_t element = i * matrix.columns + begin;
    uint8_t* to = static_cast<uint8_t*>(gradient) + (matrix.begin + element) * dtype_bytes(dtype);
    float* wide = dtype == DType::kF32 ? reinterpret_cast<float*>(to) : mine.strips.as<float>();
    const Row row = row_at(matrix, i, begin, count, 0, mine);
    const bool sampled = (i + step_) % kSampleEvery == 0;
    if (sampled) {
      for (uint64_t j = 0; j < count; ++j)
        sample.energy += square(row.gradient[j] + row.residual[j]);
    }
    weigh(matrix, i, 1, mine.weight());
    weigh(matrix, i, scale(), mine.weight() + rank_);
    const uint64_t offset = matrix.right + begin;
    float* residual = residual_.values() + matrix.residual + element;
    split_row(row, count,
              {mine.weight(),
               mine.weight() + rank_,
               {own_right_.as<float>() + offset, matrix.columns, rank_},
               {right_.as<float>() + offset, matrix.columns, rank_},
               residual,
               wide});
    if (sampled) {
      for (uint64_t j = 0; j < count; ++j)
        sample.error += square(residual[j]);
    }
    if (dtype != DType::kF32) convert(DType::kF32, wide, count, 1, dtype, to);
  }

  static double square(float x) { return static_cast<double>(x) * static_cast<double>(x); }

  Columns columns_of(Buffer& factor, const Matrix& matrix) const {
    return {factor.as<float>() + matrix.right, matrix.columns, rank_};
  }
  static bool is_finite(const Columns& columns) {
    return std::all_of(columns.data, columns.data + columns.rank * columns.length,
                       [](float x) { return std::isfinite(x); });
  }

  // ---- what travels as it is, as `dense` sends it

  void gather_others() {
    const DType dtype = layout().dtype;
    const uint64_t width = dtype_bytes(dtype);
    uint8_t* to = others_.as<uint8_t>();
    for (const Stretch& stretch : division_.others) {
      addend::multiply(dtype, static_cast<const uint8_t*>(gradient_) + stretch.begin * width,
                       stretch.count, scale(), to);
      to += stretch.count * width;
    }
  }
  void scatter_others(void* gradient) const {
    const uint64_t width = dtype_bytes(layout().dtype);
    const uint8_t* from = others_.as<uint8_t>();
    for (const Stretch& stretch : division_.others) {
      std::memcpy(static_cast<uint8_t*>(gradient) + stretch.begin * width, from,
                  stretch.count * width);
      from += stretch.count * width;
    }
  }

  const uint64_t rank_;
  const Factors factors_;
  const Division division_;
  std::unique_ptr<FactorSum> left_sum_, right_sum_;
  enum class Waiting : uint8_t { kNothing, kLeft, kRight };
  Waiting waiting_ = Waiting::kNothing;
  const void* gradient_ = nullptr;
  std::vector<uint64_t> learnt_;  // of each matrix: digest of its part of last_right_
  std::vector<uint8_t> lost_;     // of each matrix: 1 if a factor is not finite
  std::vector<Sample> samples_;   // of each piece of rows
  std::vector<Scratch> scratch_;  // of each thread
  Buffer others_;                 // elements of the layout's type
  Buffer left_, right_;           // this worker's, then the sums
  Buffer own_right_;              // this worker's part of right_
  Buffer last_right_;             // of the last step, orthonormal
};

}  // namespace

const std::vector<OptionHelp>& lowrank_options() {
  static const std::vector<OptionHelp> options = {
      {"rank", "1..64", "columns of a matrix's two factors (4)"},
      {"factors", "f32|bf16|quant", "how these travel; what a right one loses is owed"},
  };
  return options;
}

Result<std::unique_ptr<Codec>> create_lowrank(const CodecSpec& spec, const Layout& layout) {
  ADDEND_TRY(check_options(spec, lowrank_options()));
  const auto rank = read_integer(spec, "rank", kUsualRank, 1, kMostRank);
  ADDEND_TRY(rank);
  const auto factors = read_choice(spec, lowrank_options()[1], 0);
  ADDEND_TRY(factors);
  Division division = divide(layout, *rank);
  // Nothing to factor: that is dense, whose planes may lie in the gradient.
  if (division.matrices.empty()) return create_dense({"dense", {}}, layout);
  auto codec = std::make_unique<LowrankCodec>(layout, *rank, static_cast<Factors>(*factors),
                                              std::move(division));
  ADDEND_TRY(codec->set_up());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::lowrank
