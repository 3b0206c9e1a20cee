#include "native/rest/predict_body.h"

#include <string>
#include <vector>

#include "native/tensor/tensor_access.h"
#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/plain_servable.h"

namespace millpond::fuzz {
namespace {

namespace dtype = tensor::dtype;

// x -> x, of any shape; "of_DTYPE" for each dtype that JSON has, and of float32 by default.
std::vector<tensor::Signature> Signatures() {
  std::vector<tensor::Signature> signatures;
  const auto add = [&](const std::string& name, int dtype) {
    tensor::Signature& signature = signatures.emplace_back();
    signature.name = name;
    signature.inputs = {testing::AnyShapeSpec("x", dtype)};
    signature.outputs = signature.inputs;
  };
  add("serving_default", dtype::kFloat);
  for (const int dtype :
       {dtype::kFloat, dtype::kDouble, dtype::kInt32, dtype::kUint8, dtype::kInt16, dtype::kInt8,
        dtype::kString, dtype::kInt64, dtype::kBool, dtype::kHalf, dtype::kBfloat16, dtype::kUint16,
        dtype::kUint32, dtype::kUint64}) {
    add("of_" + std::to_string(dtype), dtype);
  }
  return signatures;
}

}  // namespace

// A body of Predict becomes a tensor whose bytes fit its shape, or it is refused with a message, as
// INVALID_ARGUMENT or FAILED_PRECONDITION.
Verdict Run(std::string_view input) {
  static const testing::PlainServable servable(Signatures());
  rest::PredictBody body;
  const base::Status status = rest::ReadPredictBody(servable, input, &body);
  if (!status.ok()) {
    FUZZ_CHECK(status.code() == base::Code::kInvalidArgument ||
                   status.code() == base::Code::kFailedPrecondition,
               std::string(base::CodeName(status.code())) + " " + status.message());
    FUZZ_CHECK(!status.message().empty(), "no message");
    return Verdict::kRefused;
  }
  const tensor::TensorView view = tensor::ViewTensor(body.inputs, 0);
  FUZZ_CHECK(view.bytes.size() == view.element_count * tensor::ElementBytes(view.dtype),
             std::to_string(view.bytes.size()) + " bytes");
  return Verdict::kTaken;
}

}  // namespace millpond::fuzz
