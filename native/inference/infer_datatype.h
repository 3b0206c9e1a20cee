#pragma once

#include <array>
#include <string_view>

#include "native/tensor/dtype.h"

namespace millpond::inference {

// A dtype that the open inference protocol names.
struct Datatype {
  std::string_view name;
  int dtype;
};

inline constexpr std::array<Datatype, 14> kDatatypes = {{
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

// Returns the open inference protocol's name of a tensorflow::DataType, like "FP32". Returns "" if
// the protocol does not name it (quantized and complex numbers, resources, variants).
std::string_view DatatypeName(int dtype);

// Returns the tensorflow::DataType of a name, or 0 if the protocol does not have the name.
int DtypeOf(std::string_view datatype);

}  // namespace millpond::inference
