// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/codecs.h"

namespace addend::cli {

std::vector<std::string> sensible_codecs() {
  std::vector<std::string> codecs{"dense"};
  for (const std::string& name : codec_names()) {
    if (name != "dense") codecs.push_back(name);
    if (name == "exact") {
      for (const char* options :
           {"mode=packed", "mode=two-level", "mode=sketch", "values=reproducible"}) {
        codecs.push_back(name + ":" + options);
      }
    }
  }
  return codecs;
}

CLI::Option* add_codec_option(CLI::App& command, std::vector<std::string>& codecs) {
  return command
      .add_option("-c,--codec", codecs,
                  "codec and options, e.g. exact:mode=sketch,values=reproducible (repeatable)")
      ->type_name("SPEC")
      ->allow_extra_args(false)
      ->capture_default_str();
}

Result<std::vector<CodecSpec>> parse_codecs(const std::vector<std::string>& codecs,
                                            const Layout& layout) {
  std::vector<CodecSpec> specs;
  for (const std::string& text : codecs) {
    auto spec = CodecSpec::parse(text);
    if (!spec) return spec.error();
    ADDEND_TRY(create_codec(*spec, layout));
    specs.push_back(*std::move(spec));
  }
  return specs;
}

CLI::Option* add_dtype_option(CLI::App& command, std::string& dtype) {
  return command.add_option("-d,--dtype", dtype, "element type of the gradients")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
}

DType parse_dtype(const std::string& dtype) {
  if (dtype == "bf16") return DType::kBf16;
  return dtype == "f16" ? DType::kF16 : DType::kF32;
}

}  // namespace addend::cli
