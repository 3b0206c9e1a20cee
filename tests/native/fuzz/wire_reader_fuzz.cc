#include <algorithm>
#include <string>
#include <vector>

#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/wire_transcript.h"

namespace millpond::fuzz {

// A message is read to the same values, or refused, wherever the network cut it.
Verdict Run(std::string_view input) {
  const std::string whole = testing::Transcript(input);
  std::vector<size_t> every_byte;
  for (size_t cut = 0; cut <= input.size(); ++cut) every_byte.insert(every_byte.end(), {cut, cut});
  FUZZ_CHECK(testing::Transcript(input, every_byte) == whole, "byte by byte, with empty segments");
  // Each input falls on cuts of its own.
  size_t sum = 0;
  for (const char byte : input) sum = sum * 31 + static_cast<unsigned char>(byte);
  std::vector<size_t> cuts = {sum % (input.size() + 1), sum / 7 % (input.size() + 1)};
  std::sort(cuts.begin(), cuts.end());
  FUZZ_CHECK(testing::Transcript(input, cuts) == whole,
             "cut at " + std::to_string(cuts[0]) + " and " + std::to_string(cuts[1]));
  return whole == testing::kRefusedTranscript ? Verdict::kRefused : Verdict::kTaken;
}

}  // namespace millpond::fuzz
