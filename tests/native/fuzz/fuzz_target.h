#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

// A fuzz target is one executable: one NAME_fuzz.cc, which defines Run(), and fuzz_entry.cc,
// through which a fuzzer calls it. `make fuzz` links the targets below TensorFlow with clang's
// libFuzzer. All other builds link fuzz_driver.cc, a small fuzzer of this project with the same
// arguments.
namespace millpond::fuzz {

enum class Verdict { kTaken, kRefused };

// Runs the code under test on one input and checks with FUZZ_CHECK what must hold for any input.
// Each target defines it and states those promises above it. Returns whether the code took the
// input, so that the smoke run can check that the corpus leads to both outcomes.
Verdict Run(std::string_view input);

// The outcomes so far.
struct Verdicts {
  size_t taken_count = 0;
  size_t refused_count = 0;
};
const Verdicts& VerdictsSoFar();

[[noreturn]] inline void Fail(const char* condition, const std::string& detail, const char* file,
                              int line) {
  std::fprintf(stderr, "%s:%d: FUZZ_CHECK(%s) failed: %s\n", file, line, condition, detail.c_str());
  std::abort();
}

}  // namespace millpond::fuzz

// Ends the process if `condition` is false, so that the fuzzer saves the input. `detail` is text.
#define FUZZ_CHECK(condition, detail) \
  if (!(condition)) ::millpond::fuzz::Fail(#condition, detail, __FILE__, __LINE__)
