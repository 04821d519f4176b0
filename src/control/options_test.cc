// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include "addend/control.h"

namespace addend::control {
namespace {

TEST(Options, AreReadFromText) {
  const auto options = Options::parse("policy=gravac,floor=fast,window=7,scaling=geometric");
  ASSERT_TRUE(options);
  EXPECT_EQ(options->policy, Policy::kGravac);
  EXPECT_EQ(options->floor, 0.7);
  EXPECT_EQ(options->window, 7u);
  EXPECT_EQ(options->scaling, Scaling::kGeometric);
  EXPECT_EQ(Options::parse("")->floor, 0.9);
  EXPECT_EQ(Options::parse("floor=exact")->floor, 1);
}

TEST(Options, WhatIsWrongIsSaid) {
  for (const auto& [text, word] : {std::pair{"polcy=auto", "polcy"},
                                   {"policy=best", "auto, gravac or accordion"},
                                   {"floor=0.9", "safe"},
                                   {"window=0", "window"},
                                   {"window=2.5", "whole"},
                                   {"window", "key=value"},
                                   {"epsilon=nan", "epsilon"},
                                   {"least=20,most=10", "least"},
                                   {"floor=", "safe"}}) {
    const auto options = Options::parse(text);
    ASSERT_FALSE(options) << text;
    EXPECT_NE(options.error().message.find(word), std::string::npos) << options.error().message;
  }
}

}  // namespace
}  // namespace addend::control
