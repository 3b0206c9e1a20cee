#include <string>

#include "native/tf/tensor_storage.h"
#include "native/tf/typed_field.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tests/native/fuzz/tensorflow_target.h"
#include "tests/native/tensors.h"

namespace millpond::fuzz {
namespace {

// Returns true if the decoder reads `dtype` itself, and TensorFlow takes the same values: for a
// bool, TensorFlow takes any byte.
bool IsCompared(int dtype) {
  return tensorflow::DataType_IsValid(dtype) && dtype != tensorflow::DT_BOOL &&
         tf::FieldOf(static_cast<tensorflow::DataType>(dtype)).layout != tf::Layout::kOther;
}

}  // namespace

// If the decoder takes a TensorProto, then protobuf and TensorFlow take it too, and make the same
// tensor of it. The decoder refuses more (tensor_codec.h), each time with a message. The first byte
// of the input is the dtype of the signature.
Verdict Run(std::string_view input) {
  StartTensorFlow();
  const int dtype = input.empty() ? 0 : static_cast<unsigned char>(input[0]);
  if (!IsCompared(dtype)) return Verdict::kRefused;
  const std::string bytes(input.substr(1));
  tensor::TensorList list;
  const base::Status decoded = testing::Decode(bytes, dtype, &list);
  if (!decoded.ok()) {
    FUZZ_CHECK(decoded.code() == base::Code::kInvalidArgument ||
                   decoded.code() == base::Code::kResourceExhausted,
               std::string(base::CodeName(decoded.code())) + " " + decoded.message());
    FUZZ_CHECK(!decoded.message().empty(), "no message");
    return Verdict::kRefused;
  }
  tensorflow::TensorProto proto;
  tensorflow::Tensor expected;
  // The decoder skips the typed fields of other dtypes, even if they do not parse.
  if (!proto.ParseFromString(bytes)) return Verdict::kTaken;
  FUZZ_CHECK(expected.FromProto(proto), proto.ShortDebugString());
  FUZZ_CHECK(testing::IsSame(list.storage().tensors[0], expected), proto.ShortDebugString());
  return Verdict::kTaken;
}

}  // namespace millpond::fuzz
