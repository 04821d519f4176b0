// SPDX-License-Identifier: Apache-2.0
// The ways in which something that sums could come to decode. Nothing links this: the test of
// symbols looks at it and must find each.
#include "addend/codec.h"
#include "addend/snapshot.h"
#include "codec/exact/fixed.h"
#include "codec/quant/table.h"
#include "codec/step.h"

namespace addend::planted {

Result<std::unique_ptr<Codec>> makes_a_codec(const CodecSpec& spec, const Layout& layout) {
  return create_codec(spec, layout);
}

// Calls only what is virtual: the linker has nothing to complain about.
Status is_handed_a_codec(Codec& codec, void* out) { return codec.finish(out); }

Status knows_what_codecs_share(SteppedCodec& codec, void* out) { return codec.finish(out); }

Status decodes_a_snapshot(const SnapshotPlan& plan, const Snapshot& sum, void* out) {
  return decode_snapshot(plan, sum, out);
}

double looks_inside_quant(double probability) { return quant::normal_quantile(probability); }

bool looks_inside_exact(const exact::Fixed& format, float value) { return format.holds(value); }

}  // namespace addend::planted
