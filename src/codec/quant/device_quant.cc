// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/device_quant.h"

#include <string>

namespace addend::quant {
namespace {

Error not_yet(const std::string& option) {
  return make_error(Errc::kUnsupported, "quant:" + option + " does not run on a device yet");
}

Status check_options(const Options& options) {
  if (options.bits == 0) return not_yet("bits=auto");
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
  args_.dtype = static_cast<uint8_t>(indexed() ? DType::kF32 : layout().dtype);
  args_.grid = grid(coding());
  args_.seed = layout().seed;
  args_.carrier = indices() ? DeviceCarrier::kNibbles : carrier_of(coding().lane);
  ADDEND_TRY(mail_.open());
  ADDEND_TRY(send_cells());
  if (indexed()) return set_up_index();
  ADDEND_TRY(cut_blocks(layout()));
  residual_.describe(options_.feedback, blocks_.padded(), blocks_.size());
  return reserve_residuals(blocks_.padded());
}

// What is sent has been read before the next blocks are cut: a step of those waits for letters that
// come after it.
Status DeviceQuantCodec::cut_blocks(const Layout& elements) {
  blocks_.cut(elements, options_.block);
  if (blocks_.size() == 0) return {};
  if (blocks_.size() > room_) ADDEND_TRY(reserve_planes());
  return send_blocks();
}

// Unions that grow a little find room.
Status DeviceQuantCodec::reserve_planes() {
  const uint64_t blocks = blocks_.size() + (indexed() ? blocks_.size() / 4 : 0);
  const uint64_t lanes = indexed() ? blocks * options_.block : blocks_.padded();
  room_ = 0;  // if one of these fails
  ADDEND_TRY(norms_.reserve(blocks * 4));
  ADDEND_TRY(survey_.reserve(sizeof(Survey)));
  ADDEND_TRY(
      check(device_.runtime->fill(survey_.as<void>(), 0, sizeof(Survey), stream()), "clearing"));
  ADDEND_TRY(parts_.reserve(blocks * sizeof(BlockPart)));
  ADDEND_TRY(first_lanes_.reserve(blocks * 8));
  ADDEND_TRY(sampled_.reserve(blocks * 4));
  ADDEND_TRY(thresholds_.reserve(2 * kThresholds * 4));
  ADDEND_TRY(lanes_.reserve(op_bytes(op(), lanes)));
  if (indices()) ADDEND_TRY(sums_.reserve(op_sum_bytes(op(), lanes)));
  ADDEND_TRY(contributors_on_.reserve(4));
  ADDEND_TRY(sample_memory_.reserve((blocks / kSampleEvery + 1) * sizeof(Sample)));
  ADDEND_TRY(tables_.reserve(blocks * kTableBytes));
  ADDEND_TRY(tables_on_.reserve(blocks * kTableBytes));
  args_.norms = norms_.as<uint32_t>();
  args_.survey = survey_.as<Survey>();
  args_.parts = parts_.as<BlockPart>();
  args_.lanes = first_lanes_.as<uint64_t>();
  args_.sampled = sampled_.as<uint32_t>();
  args_.thresholds = thresholds_.as<float>();
  room_ = blocks;
  return {};
}

// With an index there is one, which is written to where the union was, once the step is over.
Status DeviceQuantCodec::reserve_residuals(uint64_t elements) {
  if (!residual_.any() || elements == 0) return {};
  for (Kept& kept : kept_) {
    if (indexed() && &kept != &owed()) continue;
    const uint64_t bytes = elements * residual_.element_bytes();
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

// One copy, which nobody waits for.
Status DeviceQuantCodec::send_blocks() {
  const uint64_t count = blocks_.size();
  auto* blocks = tables_.host<DeviceBlock>();
  auto* sizes = reinterpret_cast<uint32_t*>(blocks + count);
  uint32_t *warp = sizes + count, *cta = warp + count;  // the latter from behind
  uint32_t number = 0;
  for (const Block& block : blocks_) {
    blocks[number] = {block.begin,           block.place,    block.owner, block.number,
                      threshold_name(block), block.elements, block.size};
    sizes[number] = block.size;
    (suits_warp(rotates(), block.size, block.elements) ? *warp++ : *--cta) = number;
    ++number;
  }
  const void* from = tables_.host<void>();
  ADDEND_TRY(
      check(device_.runtime->copy(tables_on_.as<void>(), from, count * kTableBytes, stream()),
            "copying blocks"));
  args_.blocks = tables_on_.as<DeviceBlock>();
  args_.sizes = reinterpret_cast<const uint32_t*>(args_.blocks + count);
  args_.block_count = count;
  args_.warp_blocks = args_.sizes + count;
  args_.warp_count = static_cast<uint64_t>(warp - (sizes + count));
  args_.cta_blocks = args_.warp_blocks + args_.warp_count;
  args_.cta_count = count - args_.warp_count;
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
  uint64_t total = blocks_.memory_bytes() + sample_memory_.capacity() + tables_.capacity();
  if (union_) total += union_->memory_bytes();
  for (const cuda::DeviceBuffer* buffer :
       {&tables_on_, &cells_, &norms_, &survey_, &parts_, &first_lanes_, &sampled_, &thresholds_,
        &lanes_, &sums_, &contributors_on_, &values_, &elements_, &owed_values_, &kept_[0].values,
        &kept_[0].scales, &kept_[1].values, &kept_[1].scales}) {
    total += buffer->capacity();
  }
  return total;
}

Status DeviceQuantCodec::do_begin(const void* gradient) {
  settle();
  ADDEND_TRY(settling_);
  gradient_ = args_.gradient = gradient;
  args_.step = step_;
  args_.epoch = step_ / sign_period();
  args_.draw = threshold_draw();
  if (keeps_rotated()) args_.owed = owed().view();
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
      ADDEND_TRY(indexed() ? open_index(round) : open_norms(round));
      return true;
    case Waiting::kIndex:
      return close_index(round);
    case Waiting::kNorms:
      return encode(round);
    case Waiting::kLast:
      ADDEND_TRY(ask_count());
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
    const DeviceResidual next = keeps_rotated() ? kept_[1 - current_].view() : DeviceResidual{};
    const int code =
        kernels_->encode(args_, lanes_.as<void>(), next, sample_memory_.device<Sample>(), stream());
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

// The answer comes before sums are decoded: nothing stands still for the host's turn.
Status DeviceQuantCodec::ask_count() {
  if (live_ == 0) return {};
  return check(kernels_->contributors(contributors_on_.as<uint32_t>(), mail_.address(),
                                      mail_.expect(), stream()),
               "counting contributors");
}

// Samples were written before the sums were there.
Status DeviceQuantCodec::take_count() {
  if (live_ == 0) return {};
  const Result<const cuda::Mail*> mail = mail_.wait();
  ADDEND_TRY(mail);
  for (uint64_t s = 0; s < samples_; ++s) {
    draft().sampled_energy += sample_memory_.host<Sample>()[s].energy;
    draft().sampled_error += sample_memory_.host<Sample>()[s].error;
  }
  return take_contributors(static_cast<uint32_t>((*mail)->numbers[0]));
}

// What is written to the gradient before the count is looked at is nothing if that is wrong.
Status DeviceQuantCodec::do_finish(void* gradient) {
  const cuda::OnDevice here(device_);
  if (indexed()) {
    ADDEND_TRY(take_count());
    ADDEND_TRY(finish_index(gradient));
  } else if (layout().count > 0) {
    ADDEND_TRY(decode(args_, gradient));
    ADDEND_TRY(take_count());
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

Status DeviceQuantCodec::decode(const DeviceStep& step, void* to) {
  const SumScale scale{layout().world, 1, layout().scale};
  const uint32_t expected = draft().missing != 0 ? draft().contributors : 0;
  const DeviceCount count{live_ == 0 ? nullptr : contributors_on_.as<uint32_t>(), expected};
  return check(kernels_->decode(step, sums(), sum_carrier(), scale, count, to, stream()),
               "decoding");
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
  if (!residual_.any() || layout().count == 0) return {};
  const cuda::OnDevice here(device_);
  const bool bytes = options_.feedback == Feedback::kByte;
  const uint64_t floats = bytes ? blocks_.size() : residual_.all().elements;
  return check(kernels_->multiply((bytes ? owed().scales : owed().values).as<float>(), floats,
                                  factor, stream()),
               "scaling what is owed");
}

}  // namespace addend::quant
