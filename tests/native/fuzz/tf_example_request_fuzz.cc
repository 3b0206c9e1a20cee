#include "native/inference/tf_example_request.h"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/opaque_tensors.h"
#include "tests/native/wire_message.h"

namespace millpond::fuzz {

// An Input becomes a tensor of as many strings as it has examples, or it is refused with a message.
Verdict Run(std::string_view input) {
  const testing::SegmentedBytes segmented(input, {input.size() / 3});
  inference::ExampleInput examples;
  if (!examples.Read(segmented.reader())) return Verdict::kRefused;
  tensor::TensorList tensors;
  const base::Status status = examples.MakeTensor(&tensors);
  if (!status.ok()) {
    FUZZ_CHECK(status.code() == base::Code::kInvalidArgument, base::CodeName(status.code()));
    FUZZ_CHECK(!status.message().empty(), "no message");
    return Verdict::kRefused;
  }
  const testing::OpaqueTensor& tensor = tensors.storage().tensors[0];
  FUZZ_CHECK(tensor.dims == std::vector<int64_t>{examples.example_count()}, "another shape");
  FUZZ_CHECK(tensor.strings.size() == static_cast<size_t>(examples.example_count()),
             std::to_string(tensor.strings.size()));
  return Verdict::kTaken;
}

}  // namespace millpond::fuzz
