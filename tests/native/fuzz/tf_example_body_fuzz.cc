#include "native/rest/tf_example_body.h"

#include <string>

#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/opaque_tensors.h"
#include "tests/native/wire_message.h"

namespace millpond::fuzz {
namespace {

// Reads all fields of a message and of the messages in field 1, as an Example has them.
bool IsMessage(base::WireReader reader, int depth) {
  base::WireTag tag;
  while (!reader.AtEnd()) {
    base::WireReader body;
    if (!reader.ReadTag(&tag)) return false;
    if (depth == 0 || tag.field != 1 || tag.type != base::WireType::kLengthDelimited) {
      if (!reader.SkipField(tag)) return false;
    } else if (!reader.ReadDelimited(&body) || !IsMessage(body, depth - 1)) {
      return false;
    }
  }
  return true;
}

}  // namespace

// A body of Classify and Regress becomes at least one example, each a message of protobuf, or it is
// refused with a message.
Verdict Run(std::string_view input) {
  rest::ExampleBody body;
  const base::Status status = rest::ReadExampleBody(input, &body);
  if (!status.ok()) {
    FUZZ_CHECK(status.code() == base::Code::kInvalidArgument, base::CodeName(status.code()));
    FUZZ_CHECK(!status.message().empty(), "no message");
    return Verdict::kRefused;
  }
  const auto& examples = body.examples.storage().tensors[0].strings;
  FUZZ_CHECK(!examples.empty(), "no example");
  for (const std::string& example : examples) {
    // The Example, its Features, and an entry of their map.
    FUZZ_CHECK(IsMessage(testing::SegmentedBytes(example).reader(), 2), example);
  }
  return Verdict::kTaken;
}

}  // namespace millpond::fuzz
