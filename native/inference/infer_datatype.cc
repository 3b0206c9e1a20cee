#include "native/inference/infer_datatype.h"

#include <array>

#include "native/tensor/dtype.h"

namespace millpond::inference {
namespace {

struct Datatype {
  std::string_view name;
  int dtype;
};

constexpr std::array<Datatype, 14> kDatatypes = {{
    {"BOOL", tensor::dtype::kBool},
    {"UINT8", tensor::dtype::kUint8},
    {"UINT16", tensor::dtype::kUint16},
    {"UINT32", tensor::dtype::kUint32},
    {"UINT64", tensor::dtype::kUint64},
    {"INT8", tensor::dtype::kInt8},
    {"INT16", tensor::dtype::kInt16},
    {"INT32", tensor::dtype::kInt32},
    {"INT64", tensor::dtype::kInt64},
    {"FP16", tensor::dtype::kHalf},
    {"FP32", tensor::dtype::kFloat},
    {"FP64", tensor::dtype::kDouble},
    {"BYTES", tensor::dtype::kString},
    {"BF16", tensor::dtype::kBfloat16},
}};

}  // namespace

std::string_view DatatypeName(int dtype) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.dtype == dtype) return datatype.name;
  }
  return {};
}

int DtypeOf(std::string_view datatype) {
  for (const Datatype& known : kDatatypes) {
    if (known.name == datatype) return known.dtype;
  }
  return 0;
}

}  // namespace millpond::inference
