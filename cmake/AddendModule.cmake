# SPDX-License-Identifier: Apache-2.0
# One line per module: addend_module(<name> [DECODES] DEPS <modules> SRCS <files> [LIBS <targets>] [TESTS <files>]).
# DEPS are the module's allowed arrows; tools/check_layers.py reads them and rejects any other #include. DECODES: may reach
# a codec; no other module may, and tests/link looks at the symbols of all others.

# Flags every target of the project is compiled with; never installed.
add_library(addend_flags INTERFACE)
target_compile_features(addend_flags INTERFACE cxx_std_20)
# Fused multiply-add would make scalar, SIMD and CUDA results differ in the last bit.
target_compile_options(addend_flags INTERFACE -ffp-contract=off -fno-math-errno -fvisibility=hidden)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # popcount everywhere outside the dispatched kernels; every x86 server since 2009 has it.
  target_compile_options(addend_flags INTERFACE -march=x86-64-v2)
endif()
if(ADDEND_DEVELOPER)
  target_compile_options(addend_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC bug 105651: a false alarm on std::string concatenation.
    target_compile_options(addend_flags INTERFACE -Wno-restrict)
  endif()
endif()
if(ADDEND_ASSERTIONS)
  target_compile_definitions(addend_flags INTERFACE ADDEND_ASSERTIONS=1)
endif()
if(ADDEND_SANITIZE)
  target_compile_options(addend_flags INTERFACE -fsanitize=${ADDEND_SANITIZE} -fno-sanitize-recover=all
                                                -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's warnings that follow values see impossible ones in instrumented code; builds without it have them on.
    target_compile_options(addend_flags INTERFACE -Wno-stringop-overflow -Wno-array-bounds -Wno-maybe-uninitialized)
  endif()
  target_link_options(addend_flags INTERFACE -fsanitize=${ADDEND_SANITIZE})
endif()

function(addend_module name)
  cmake_parse_arguments(ARG "DECODES" "" "DEPS;SRCS;LIBS;TESTS" ${ARGN})
  add_library(addend_${name} STATIC)
  add_library(addend::${name} ALIAS addend_${name})
  target_sources(addend_${name} PRIVATE ${ARG_SRCS})
  set_target_properties(addend_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON
                                                  LINKER_LANGUAGE CXX)
  target_include_directories(addend_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  foreach(dep IN LISTS ARG_DEPS)
    if(TARGET addend_${dep}) # absent if this build leaves it out, like auth without OpenSSL
      target_link_libraries(addend_${name} PUBLIC addend::${dep})
    endif()
  endforeach()
  target_link_libraries(addend_${name} PRIVATE $<BUILD_INTERFACE:addend_flags>)
  target_link_libraries(addend_${name} PUBLIC ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY ADDEND_MODULES addend_${name})
  if(NOT ARG_DECODES)
    set_property(GLOBAL APPEND PROPERTY ADDEND_ADDERS addend_${name})
  endif()
  if(ADDEND_DEVELOPER AND ARG_TESTS)
    addend_test(${name}_test SRCS ${ARG_TESTS} LIBS addend::${name})
  endif()
endfunction()

# What tests add to the flags of all: they are most of what is compiled, and need not be fast where they only look at results.
# Linked last, so that its options come last.
add_library(addend_test_flags INTERFACE)
target_compile_options(addend_test_flags INTERFACE -O1)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Half optimised, strings look too short to GCC's warnings that follow values; the library is compiled with them.
  target_compile_options(addend_test_flags INTERFACE -Wno-stringop-overflow -Wno-array-bounds -Wno-maybe-uninitialized)
endif()
if(ADDEND_SANITIZE MATCHES undefined)
  # It looks at the library: in gtest's macros it only takes time, half of a compilation.
  target_compile_options(addend_test_flags INTERFACE -fno-sanitize=undefined)
endif()

# What nearly all tests include, compiled once: a quarter of a test's compilation. Not with a compiler cache, which knows
# better.
function(addend_test_headers name)
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  if(NOT TARGET addend_test_headers)
    file(WRITE ${PROJECT_BINARY_DIR}/test_headers.cc "")
    add_library(addend_test_headers OBJECT ${PROJECT_BINARY_DIR}/test_headers.cc)
    target_link_libraries(addend_test_headers PRIVATE addend_flags addend_test_flags GTest::gtest)
    target_precompile_headers(addend_test_headers PRIVATE <gtest/gtest.h> <algorithm> <array> <chrono> <condition_variable>
      <cstring> <functional> <memory> <mutex> <random> <span> <string> <thread> <vector>)
  endif()
  target_precompile_headers(${name} REUSE_FROM addend_test_headers)
endfunction()

# A test binary that may see the internals of src/.
function(addend_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SRCS;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} addend_flags addend_test_flags GTest::gtest GTest::gtest_main)
  addend_test_headers(${name})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()
