// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/device_quant.h"

#include <string>
#include <vector>

namespace addend::quant {
namespace {

Error not_yet(const std::string& option) {
  return make_error(Errc::kUnsupported, "quant:" + option + " does not run on a device yet");
}

Status check_options(const Options& options) {
  if (options.bits == 0) return not_yet("bits=auto");
  if (options.index != Index::kNone) return not_yet("index");
  if (options.block == 0) return not_yet("block=whole");
  if (options.down != 0) return not_yet("down");
  if (options.norms == Norms::kAhead) return not_yet("norms=ahead");
  return {};
}

DeviceCarrier carrier_of(Lane lane) {
  return lane == Lane::kU8    ? DeviceCarrier::kU8
         : lane == Lane::kU16 ? DeviceCarrier::kU16
                              : DeviceCarrier::kU32;
}

}  // namespace

Result<std::unique_ptr<Codec>> create_quant_on_device(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec, layout);
  ADDEND_TRY(options);
  ADDEND_TRY(check_options(*options));
  return DeviceQuantCodec::make(layout, *options);
}

Result<std::unique_ptr<Codec>> DeviceQuantCodec::make(const Layout& layout,
                                                      const Options& options) {
  const auto device = cuda::Device::of(layout.execution.stream);
  ADDEND_TRY(device);
  const auto kernels = cuda::part<QuantKernels>();
  ADDEND_TRY(kernels);
  auto codec =
      std::unique_ptr<DeviceQuantCodec>(new DeviceQuantCodec(layout, options, *device, *kernels));
  ADDEND_TRY(codec->set_up());
  return std::unique_ptr<Codec>(std::move(codec));
}

Status DeviceQuantCodec::set_up() {
  const cuda::OnDevice here(device_);
  ADDEND_TRY(make_codings());
  blocks_.cut(layout(), options_.block);
  residual_.describe(options_.feedback, blocks_.padded(), blocks_.size());
  if (blocks_.size() == 0) return {};
  ADDEND_TRY(send_blocks());
  ADDEND_TRY(send_cells());
  ADDEND_TRY(reserve_planes());
  ADDEND_TRY(reserve_residuals());
  args_.dtype = static_cast<uint8_t>(layout().dtype);
  args_.grid = grid(coding());
  args_.seed = layout().seed;
  args_.carrier = indices() ? DeviceCarrier::kNibbles : carrier_of(coding().lane);
  return mail_.open();
}

Status DeviceQuantCodec::reserve_planes() {
  ADDEND_TRY(norms_.reserve(blocks_.size() * 4));
  ADDEND_TRY(survey_.reserve(sizeof(Survey)));
  ADDEND_TRY(parts_.reserve(blocks_.size() * sizeof(BlockPart)));
  ADDEND_TRY(first_lanes_.reserve(blocks_.size() * 8));
  ADDEND_TRY(sampled_.reserve(blocks_.size() * 4));
  ADDEND_TRY(thresholds_.reserve(2 * kThresholds * 4));
  ADDEND_TRY(lanes_.reserve(op_bytes(op(), blocks_.padded())));
  if (indices()) ADDEND_TRY(sums_.reserve(op_sum_bytes(op(), blocks_.padded())));
  ADDEND_TRY(contributors_on_.reserve(4));
  ADDEND_TRY(sample_memory_.reserve((blocks_.size() / kSampleEvery + 1) * sizeof(Sample)));
  args_.norms = norms_.as<uint32_t>();
  args_.survey = survey_.as<Survey>();
  args_.parts = parts_.as<BlockPart>();
  args_.lanes = first_lanes_.as<uint64_t>();
  args_.sampled = sampled_.as<uint32_t>();
  args_.thresholds = thresholds_.as<float>();
  return {};
}

Status DeviceQuantCodec::reserve_residuals() {
  if (!residual_.any()) return {};
  for (Kept& kept : kept_) {
    const uint64_t bytes = blocks_.padded() * residual_.element_bytes();
    ADDEND_TRY(kept.values.reserve(bytes));
    ADDEND_TRY(
        check(device_.runtime->fill(kept.values.as<void>(), 0, bytes, stream()), "clearing"));
    if (options_.feedback != Feedback::kByte) continue;
    ADDEND_TRY(kept.scales.reserve(blocks_.size() * 4));
    ADDEND_TRY(check(device_.runtime->fill(kept.scales.as<void>(), 0, blocks_.size() * 4, stream()),
                     "clearing"));
  }
  return {};
}

bool DeviceQuantCodec::suits_warp(const Block& block) const {
  return block.size == kWarpBlock && block.elements == kWarpBlock && rotates() &&
         options_.feedback != Feedback::kByte;
}

Status DeviceQuantCodec::send_blocks() {
  std::vector<DeviceBlock> blocks;
  std::vector<uint32_t> sizes, warps, ctas;
  for (const Block& block : blocks_) {
    (suits_warp(block) ? warps : ctas).push_back(static_cast<uint32_t>(blocks.size()));
    blocks.push_back({block.begin, block.place, block.owner, block.number, threshold_name(block),
                      block.elements, block.size});
    sizes.push_back(block.size);
  }
  ADDEND_TRY(upload(blocks_on_, blocks.data(), blocks.size() * sizeof(DeviceBlock)));
  ADDEND_TRY(upload(sizes_, sizes.data(), sizes.size() * 4));
  ADDEND_TRY(upload(warp_blocks_, warps.data(), warps.size() * 4));
  ADDEND_TRY(upload(cta_blocks_, ctas.data(), ctas.size() * 4));
  args_.blocks = blocks_on_.as<DeviceBlock>();
  args_.sizes = sizes_.as<uint32_t>();
  args_.block_count = blocks.size();
  args_.warp_blocks = warp_blocks_.as<uint32_t>();
  args_.warp_count = warps.size();
  args_.cta_blocks = cta_blocks_.as<uint32_t>();
  args_.cta_count = ctas.size();
  args_.largest = blocks_.largest();
  return {};
}

Status DeviceQuantCodec::send_cells() {
  std::array<DeviceCell, kDeviceCells> cells;
  for (std::size_t c = 0; c < kDeviceCells; ++c) {
    const float down = indices() ? coding().index[c] : coding().lower[c];
    const float step = indices() ? 1 : coding().gap[c];
    cells[c] = {coding().lower[c], static_cast<uint8_t>(down), static_cast<uint8_t>(down + step),
                addend_bf16_from_f32(coding().gap[c])};
  }
  ADDEND_TRY(upload(cells_, cells.data(), sizeof(cells)));
  args_.cells = cells_.as<DeviceCell>();
  return {};
}

DeviceCarrier DeviceQuantCodec::sum_carrier() const { return carrier_of(coding().lane); }

Status DeviceQuantCodec::copy(void* to, const void* from, uint64_t bytes) const {
  ADDEND_TRY(check(device_.runtime->copy(to, from, bytes, stream()), "copying"));
  return check(device_.runtime->synchronize(stream()), "copying");
}

Status DeviceQuantCodec::upload(cuda::DeviceBuffer& buffer, const void* from, uint64_t bytes) {
  if (bytes == 0) return {};
  ADDEND_TRY(buffer.reserve(bytes));
  return copy(buffer.as<void>(), from, bytes);
}

uint64_t DeviceQuantCodec::memory_bytes() const {
  uint64_t total = blocks_.memory_bytes() + sample_memory_.capacity();
  for (const cuda::DeviceBuffer* buffer :
       {&blocks_on_, &sizes_, &warp_blocks_, &cta_blocks_, &cells_, &norms_, &survey_, &parts_,
        &first_lanes_, &sampled_, &thresholds_, &lanes_, &sums_, &contributors_on_,
        &kept_[0].values, &kept_[0].scales, &kept_[1].values, &kept_[1].scales}) {
    total += buffer->capacity();
  }
  return total;
}

Status DeviceQuantCodec::do_begin(const void* gradient) {
  args_.gradient = gradient;
  args_.step = step_;
  args_.epoch = step_ / sign_period();
  args_.draw = threshold_draw();
  args_.owed = owed().view();
  waiting_ = Waiting::kNothing;
  excluded_ = false;
  live_ = samples_ = 0;
  draft().mode = "quant";
  return {};
}

Result<bool> DeviceQuantCodec::do_round(Round& round) {
  if (layout().count == 0) return false;
  const cuda::OnDevice here(device_);
  switch (waiting_) {
    case Waiting::kNothing:
      ADDEND_TRY(open_norms(round));
      return true;
    case Waiting::kNorms:
      return encode(round);
    case Waiting::kLast:
      ADDEND_TRY(take_sums());
      return false;
  }
  return false;
}

Status DeviceQuantCodec::open_norms(Round& round) {
  ADDEND_TRY(check(kernels_->norms(args_, stream()), "taking norms"));
  round.add({Op::kMaxU32, blocks_.size(), norms_.as<void>(), nullptr, nullptr});
  waiting_ = Waiting::kNorms;
  return {};
}

// The lanes need nothing that the host knows, so they are under way while it waits for their
// number. Norms that do not know of this worker are no scale for its elements, and nobody will add
// them.
Result<bool> DeviceQuantCodec::encode(Round& round) {
  waiting_ = Waiting::kLast;
  ADDEND_TRY(check(kernels_->survey(args_, contributors_on_.as<uint32_t>(), mail_.address(),
                                    mail_.expect(), stream()),
                   "reading norms"));
  if (excluded_) {
    const uint64_t bytes = op_bytes(op(), blocks_.padded());
    ADDEND_TRY(check(device_.runtime->fill(lanes_.as<void>(), 0, bytes, stream()), "clearing"));
  } else {
    const int code = kernels_->encode(args_, lanes_.as<void>(), kept_[1 - current_].view(),
                                      sample_memory_.device<Sample>(), stream());
    ADDEND_TRY(check(code, "encoding"));
  }
  const Result<const cuda::Mail*> mail = mail_.wait();
  ADDEND_TRY(mail);
  live_ = (*mail)->numbers[kMailLive];
  const uint64_t lanes = (*mail)->numbers[kMailLanes], broken = (*mail)->numbers[kMailBroken];
  draft().escaped_values = draft().nonfinite = broken;
  if (broken > 0 && options_.non_finite == NonFinite::kError) return broken_blocks(broken);
  if (live_ == 0) return false;
  const uint64_t every = std::min(kSampleEvery, live_);
  samples_ = excluded_ ? 0 : (live_ - step_ % every + every - 1) / every;
  const void* table = coding().lane == Lane::kU8 ? static_cast<const void*>(coding().levels8.data())
                                                 : coding().levels16.data();
  round.add({op(), lanes, lanes_.as<void>(), indices() ? table : nullptr,
             indices() ? sums_.as<void>() : nullptr});
  round.add({Op::kSumI32, 1, contributors_on_.as<void>(), nullptr, nullptr});
  round.last = true;
  return true;
}

// Samples were written before the sums were there.
Status DeviceQuantCodec::take_sums() {
  if (live_ == 0) return {};
  ADDEND_TRY(check(kernels_->contributors(contributors_on_.as<uint32_t>(), mail_.address(),
                                          mail_.expect(), stream()),
                   "counting contributors"));
  const Result<const cuda::Mail*> mail = mail_.wait();
  ADDEND_TRY(mail);
  contributors_ = static_cast<uint32_t>((*mail)->numbers[0]);
  for (uint64_t s = 0; s < samples_; ++s) {
    draft().sampled_energy += sample_memory_.host<Sample>()[s].energy;
    draft().sampled_error += sample_memory_.host<Sample>()[s].error;
  }
  return {};
}

Status DeviceQuantCodec::do_finish(void* gradient) {
  if (live_ > 0) ADDEND_TRY(take_contributors(contributors_));
  if (layout().count > 0) {
    const cuda::OnDevice here(device_);
    const SumScale scale{layout().world, static_cast<double>(contributors_), layout().scale};
    ADDEND_TRY(check(kernels_->decode(args_, sums(), sum_carrier(), scale, gradient, stream()),
                     "decoding"));
    const bool keeps = residual_.any() && !excluded_;
    if (turns_residual()) {
      const DeviceResidual turned = kept_[keeps ? 1 - current_ : current_].view();
      ADDEND_TRY(check(kernels_->turn(args_, turned, stream()), "turning what is owed"));
    }
    if (keeps) current_ = 1 - current_;
  }
  ++step_;
  return {};
}

Status DeviceQuantCodec::fetch_residual(const Residual::Range& range, uint8_t* to) const {
  const uint64_t each = residual_.element_bytes(), bytes = range.elements * each;
  if (bytes == 0) return {};
  const cuda::OnDevice here(device_);
  ADDEND_TRY(copy(to, owed().values.as<uint8_t>() + range.begin * each, bytes));
  if (options_.feedback != Feedback::kByte) return {};
  return copy(to + bytes, owed().scales.as<float>() + range.first_block, range.blocks * 4);
}

Status DeviceQuantCodec::put_residual(const Residual::Range& range, const uint8_t* from) {
  const uint64_t each = residual_.element_bytes(), bytes = range.elements * each;
  if (bytes == 0) return {};
  const cuda::OnDevice here(device_);
  ADDEND_TRY(copy(owed().values.as<uint8_t>() + range.begin * each, from, bytes));
  if (options_.feedback != Feedback::kByte) return {};
  return copy(owed().scales.as<float>() + range.first_block, from + bytes, range.blocks * 4);
}

Status DeviceQuantCodec::multiply_residual(double factor) {
  if (!residual_.any() || blocks_.size() == 0) return {};
  const cuda::OnDevice here(device_);
  const bool bytes = options_.feedback == Feedback::kByte;
  return check(kernels_->multiply((bytes ? owed().scales : owed().values).as<float>(),
                                  bytes ? blocks_.size() : blocks_.padded(), factor, stream()),
               "scaling what is owed");
}

}  // namespace addend::quant
