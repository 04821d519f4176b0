// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/workload/half.h"
#include "apps/workload/random.h"

namespace addend::workload {

namespace {

// What a random stream is for; the bucket's number is added to kValues.
constexpr uint64_t kUsers = 1;
constexpr uint64_t kItems = 2;
constexpr uint64_t kNegativeItems = 3;
constexpr uint64_t kWords = 4;
constexpr uint64_t kNegativeWords = 5;
constexpr uint64_t kValues = 1000;

/// How often one worker's batch touches each row of a table.
using Touches = std::vector<uint32_t>;
using DrawTouches = std::function<Touches(const Draw&)>;

uint64_t scaled(uint64_t size, double scale) {
  const auto product = static_cast<uint64_t>(std::llround(static_cast<double>(size) * scale));
  return std::max<uint64_t>(product, 1);
}

/// Spreads popularity ranks over a table: identifiers are handed out in order of arrival, not of
/// popularity.
class Scatter {
 public:
  explicit Scatter(uint64_t rows) : rows_(rows), factor_(2654435761 % rows) {
    while (std::gcd(factor_, rows_) != 1)
      ++factor_;
  }
  uint64_t row(uint64_t rank) const { return rank * factor_ % rows_; }

 private:
  uint64_t rows_;
  uint64_t factor_;
};

/// Collects the buckets of one model; buckets of equal shape still draw different values.
class ModelBuilder {
 public:
  ModelBuilder(std::string name, std::string description, uint64_t seed)
      : model_{std::move(name), std::move(description), {}}, seed_(seed) {}

  /// A table of `width` columns: a row that the batch touches m times is the sum of m independent
  /// contributions.
  void add_table(std::string name, uint64_t rows, uint64_t width, DrawTouches draw_touches) {
    const uint64_t stream = kValues + model_.buckets.size();
    auto fill = [=, seed = seed_, touches_of = std::move(draw_touches)](const Draw& draw,
                                                                        std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.0f);
      const Touches touches = touches_of(draw);
      const Stream values({seed, stream, draw.step, draw.worker});
      for (uint64_t row = 0; row < rows; ++row) {
        if (touches[row] == 0) continue;
        const double scale = 1e-3 * std::sqrt(static_cast<double>(touches[row]));
        for (uint64_t i = row * width; i < (row + 1) * width; ++i) {
          out[i] = static_cast<float>(scale * to_normal(values.bits(i)));
        }
      }
    };
    model_.buckets.push_back({std::move(name), rows * width, std::move(fill)});
  }

  /// A layer whose gradient has no zeros.
  void add_dense(std::string name, uint64_t count, double scale) {
    const uint64_t stream = kValues + model_.buckets.size();
    auto fill = [=, seed = seed_](const Draw& draw, std::span<float> out) {
      const Stream values({seed, stream, draw.step, draw.worker});
      for (uint64_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(scale * to_normal(values.bits(i)));
      }
    };
    model_.buckets.push_back({std::move(name), count, std::move(fill)});
  }

  Model take() { return std::move(model_); }

 private:
  Model model_;
  uint64_t seed_;
};

/// Neural collaborative filtering on a MovieLens-20M sized set: a matrix-factorisation pair and an
/// MLP pair of user and item tables, trained on positives (power law) with four uniformly drawn
/// negative items each.
Model make_recommender(const ModelOptions& options) {
  const uint64_t users = scaled(138'493, options.scale);
  const uint64_t items = scaled(26'744, options.scale);
  const uint64_t positives = scaled(820, options.scale);
  const auto user_touches = [=, seed = options.seed](const Draw& draw) {
    const Stream words({seed, kUsers, draw.step, draw.worker});
    const ZipfSampler popularity(users, 0.6);
    const Scatter scatter(users);
    Touches touches(users);
    for (uint64_t i = 0; i < positives; ++i) {
      touches[scatter.row(popularity.rank(words.bits(i)))] += 5;  // the positive and its negatives
    }
    return touches;
  };
  const auto item_touches = [=, seed = options.seed](const Draw& draw) {
    const Stream words({seed, kItems, draw.step, draw.worker});
    const Stream negatives({seed, kNegativeItems, draw.step, draw.worker});
    const ZipfSampler popularity(items, 1.0);
    const Scatter scatter(items);
    Touches touches(items);
    for (uint64_t i = 0; i < positives; ++i) {
      ++touches[scatter.row(popularity.rank(words.bits(i)))];
    }
    for (uint64_t i = 0; i < 4 * positives; ++i)
      ++touches[to_index(negatives.bits(i), items)];
    return touches;
  };
  ModelBuilder builder(
      "recommender",
      "neural collaborative filtering: user and item tables with rows of 64, power-law "
      "popularity, an MLP",
      options.seed);
  builder.add_table("mf.user", users, 64, user_touches);
  builder.add_table("mf.item", items, 64, item_touches);
  builder.add_table("mlp.user", users, 64, user_touches);
  builder.add_table("mlp.item", items, 64, item_touches);
  builder.add_dense("mlp.layers", scaled(128 * 256 + 256 * 128 + 128 * 64 + 513, options.scale),
                    1e-3);
  return builder.take();
}

/// A recurrent language model: embedding rows are the words of the batch, softmax rows the batch's
/// targets and log-uniform negatives drawn without replacement. Words are numbered by frequency, as
/// that sampler requires.
Model make_language(const ModelOptions& options) {
  const uint64_t vocabulary = scaled(40'000, options.scale);
  const uint64_t tokens = scaled(1'280, options.scale);
  const uint64_t negatives = std::min(scaled(2'048, options.scale), vocabulary / 2);
  const auto word_touches = [=, seed = options.seed](const Draw& draw) {
    const Stream words({seed, kWords, draw.step, draw.worker});
    const ZipfSampler frequency(vocabulary, 1.0);
    Touches touches(vocabulary);
    for (uint64_t i = 0; i < tokens; ++i)
      ++touches[frequency.rank(words.bits(i))];
    return touches;
  };
  const auto softmax_touches = [=, seed = options.seed](const Draw& draw) {
    // The targets are the same text shifted by one word: the same rows.
    Touches touches = word_touches(draw);
    const Stream words({seed, kNegativeWords, draw.step, draw.worker});
    const ZipfSampler sampler(vocabulary, 1.0);
    std::vector<bool> drawn(vocabulary);
    for (uint64_t i = 0, unique = 0; unique < negatives; ++i) {
      const uint64_t word = sampler.rank(words.bits(i));
      if (drawn[word]) continue;
      drawn[word] = true;
      ++touches[word];
      ++unique;
    }
    return touches;
  };
  ModelBuilder builder(
      "language",
      "LSTM language model with sampled softmax: 40,000 words by Zipf frequency, rows of 128",
      options.seed);
  builder.add_table("softmax", vocabulary, 128, softmax_touches);
  builder.add_dense("lstm.1", scaled(4 * 512 * (128 + 128 + 1) + 512 * 128, options.scale), 3e-4);
  builder.add_dense("lstm.0", scaled(4 * 512 * (128 + 128 + 1) + 512 * 128, options.scale), 2e-4);
  builder.add_table("embedding", vocabulary, 128, word_touches);
  return builder.take();
}

/// A plain convolutional classifier, last layer first as backpropagation delivers it: no zeros to
/// exploit.
Model make_vision(const ModelOptions& options) {
  ModelBuilder builder(
      "vision", "convolutional classifier: every gradient dense, Gaussian, one scale a layer",
      options.seed);
  const auto conv = [&](uint64_t in, uint64_t out) {
    return scaled(in * out * 9 + 2 * out, options.scale);
  };
  builder.add_dense("fc", scaled(512 * 1000 + 1000, options.scale), 4e-4);
  builder.add_dense("conv8", conv(512, 512), 6e-5);
  builder.add_dense("conv7", conv(512, 512), 8e-5);
  builder.add_dense("conv6", conv(256, 512), 1e-4);
  builder.add_dense("conv4-5", conv(256, 256) + conv(128, 256), 2e-4);
  builder.add_dense("conv1-3", conv(128, 128) + conv(64, 128) + conv(3, 64), 2e-3);
  return builder.take();
}

}  // namespace

uint64_t Model::count() const {
  uint64_t total = 0;
  for (const Bucket& bucket : buckets)
    total += bucket.count;
  return total;
}

std::vector<std::string> model_names() { return {"recommender", "language", "vision"}; }

Result<Model> make_model(std::string_view name, const ModelOptions& options) {
  if (!(options.scale > 0 && options.scale <= 16)) {
    return make_error(Errc::kInvalidArgument, "a model's scale must lie between 0 and 16");
  }
  if (name == "recommender") return make_recommender(options);
  if (name == "language") return make_language(options);
  if (name == "vision") return make_vision(options);
  return make_error(Errc::kInvalidArgument,
                    "no model named '" + std::string(name) + "' (recommender, language, vision)");
}

void draw_bucket(const Bucket& bucket, const Draw& draw, DType dtype, void* out) {
  if (dtype == DType::kF32) {
    bucket.fill(draw, {static_cast<float*>(out), bucket.count});
    return;
  }
  std::vector<float> wide(bucket.count);
  bucket.fill(draw, wide);
  for (uint64_t i = 0; i < bucket.count; ++i)
    store_element(dtype, out, i, wide[i]);
}

}  // namespace addend::workload
