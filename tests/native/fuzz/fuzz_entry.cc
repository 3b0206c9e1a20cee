// The function that libFuzzer, and fuzz_driver.cc in its place, calls with each input.
#include <cstdint>
#include <vector>

#include "tests/native/fuzz/fuzz_target.h"

namespace millpond::fuzz {
namespace {

Verdicts verdicts;

}  // namespace

const Verdicts& VerdictsSoFar() { return verdicts; }

}  // namespace millpond::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using millpond::fuzz::Verdict;
  // A block of exactly this size, so that AddressSanitizer sees a read past its end.
  const std::vector<char> block(data, data + size);
  const Verdict verdict = millpond::fuzz::Run({block.data(), block.size()});
  auto& verdicts = millpond::fuzz::verdicts;
  ++(verdict == Verdict::kTaken ? verdicts.taken_count : verdicts.refused_count);
  return 0;
}
