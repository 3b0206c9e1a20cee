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
    {"BOOL", tf::dtype::kBool},
    {"UINT8", tf::dtype::kUint8},
    {"UINT16", tf::dtype::kUint16},
    {"UINT32", tf::dtype::kUint32},
    {"UINT64", tf::dtype::kUint64},
    {"INT8", tf::dtype::kInt8},
    {"INT16", tf::dtype::kInt16},
    {"INT32", tf::dtype::kInt32},
    {"INT64", tf::dtype::kInt64},
    {"FP16", tf::dtype::kHalf},
    {"FP32", tf::dtype::kFloat},
    {"FP64", tf::dtype::kDouble},
    {"BYTES", tf::dtype::kString},
    {"BF16", tf::dtype::kBfloat16},
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
