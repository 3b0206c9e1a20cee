#include "native/tensor/dtype.h"

namespace millpond::tensor {
namespace {

// The names of the types from 0 on. They are TensorFlow's names, but for "float" and "double":
// clients know these two types by numpy's names. signature_def_test.cc compares the table with
// TensorFlow.
constexpr const char* kNames[] = {"INVALID",
                                  "float32",
                                  "float64",
                                  "int32",
                                  "uint8",
                                  "int16",
                                  "int8",
                                  "string",
                                  "complex64",
                                  "int64",
                                  "bool",
                                  "qint8",
                                  "quint8",
                                  "qint32",
                                  "bfloat16",
                                  "qint16",
                                  "quint16",
                                  "uint16",
                                  "complex128",
                                  "half",
                                  "resource",
                                  "variant",
                                  "uint32",
                                  "uint64",
                                  "float8_e5m2",
                                  "float8_e4m3fn",
                                  "float8_e4m3fnuz",
                                  "float8_e4m3b11fnuz",
                                  "float8_e5m2fnuz",
                                  "int4",
                                  "uint4",
                                  "int2",
                                  "uint2",
                                  "float4_e2m1fn"};
constexpr int kCount = sizeof(kNames) / sizeof(kNames[0]);

// The number of a reference to a type follows the number of the type by this distance.
constexpr int kReferenceOffset = 100;

}  // namespace

std::string DtypeName(int dtype) {
  if (dtype >= 0 && dtype < kCount) return kNames[dtype];
  const int referred = dtype - kReferenceOffset;
  if (referred > 0 && referred < kCount) return std::string(kNames[referred]) + "_ref";
  return "dtype " + std::to_string(dtype);
}

}  // namespace millpond::tensor
