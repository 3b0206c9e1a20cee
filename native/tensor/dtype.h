#pragma once

#include <cstddef>
#include <string>

namespace millpond::tensor::dtype {

// The numbers of tensorflow::DataType, for rungs that read and write elements without TensorFlow's
// headers. tensor_access.cc compares them with TensorFlow's.
inline constexpr int kFloat = 1;
inline constexpr int kDouble = 2;
inline constexpr int kInt32 = 3;
inline constexpr int kUint8 = 4;
inline constexpr int kInt16 = 5;
inline constexpr int kInt8 = 6;
inline constexpr int kString = 7;
inline constexpr int kInt64 = 9;
inline constexpr int kBool = 10;
inline constexpr int kBfloat16 = 14;
inline constexpr int kUint16 = 17;
inline constexpr int kHalf = 19;
inline constexpr int kUint32 = 22;
inline constexpr int kUint64 = 23;

}  // namespace millpond::tensor::dtype

namespace millpond::tensor {

// Returns the size of one element in TensorView::bytes, or 0 if the dtype is neither a number nor a
// bool.
constexpr size_t ElementBytes(int dtype) {
  switch (dtype) {
    case dtype::kBool:
    case dtype::kInt8:
    case dtype::kUint8:
      return 1;
    case dtype::kInt16:
    case dtype::kUint16:
    case dtype::kHalf:
    case dtype::kBfloat16:
      return 2;
    case dtype::kFloat:
    case dtype::kInt32:
    case dtype::kUint32:
      return 4;
    case dtype::kDouble:
    case dtype::kInt64:
    case dtype::kUint64:
      return 8;
    default:
      return 0;
  }
}

// Returns the name of a tensorflow::DataType, like "float32"; "dtype 77" if the type does not
// exist.
std::string DtypeName(int dtype);

}  // namespace millpond::tensor
