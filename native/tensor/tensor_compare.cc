#include "native/tensor/tensor_compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "native/tensor/dtype.h"
#include "native/tensor/small_float.h"
#include "native/tensor/tensor_access.h"

namespace millpond::tensor {
namespace {

// Four units in the last place (IEEE 754 binary16, bfloat16).
constexpr double kHalfTolerance = 4.0 / 1024;
constexpr double kBfloat16Tolerance = 4.0 / 128;
constexpr double kTinyShare = 1e-3;

template <typename T>
double ValueAt(const TensorView& view, int64_t i) {
  T value;
  std::memcpy(&value, view.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return static_cast<double>(value);
}

template <typename Read>
bool AreClose(int64_t count, double tolerance, const Read& read_a, const Read& read_b) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(read_a(i))) largest = std::max(largest, std::abs(read_a(i)));
  }
  for (int64_t i = 0; i < count; ++i) {
    const double a = read_a(i);
    const double b = read_b(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    // Beside an infinite value, every difference would count as small.
    if (!std::isfinite(a) || !std::isfinite(b)) return false;
    const double scale = std::max({std::abs(a), std::abs(b), largest * kTinyShare});
    if (!(std::abs(a - b) <= tolerance * scale)) return false;
  }
  return true;
}

template <typename T>
bool AreCloseAs(const TensorView& a, const TensorView& b, double tolerance) {
  struct Read {
    const TensorView& view;
    double operator()(int64_t i) const { return ValueAt<T>(view, i); }
  };
  return AreClose(a.element_count, tolerance, Read{a}, Read{b});
}

bool AreSmallFloatsClose(const TensorView& a, const TensorView& b, double tolerance) {
  struct Read {
    const TensorView& view;
    double operator()(int64_t i) const {
      uint16_t bits = 0;
      std::memcpy(&bits, view.bytes.data() + i * 2, sizeof bits);
      return view.dtype == dtype::kHalf ? Half::ToFloat(bits) : Bfloat16::ToFloat(bits);
    }
  };
  return AreClose(a.element_count, tolerance, Read{a}, Read{b});
}

bool AreStringsEqual(const TensorList& a, const TensorList& b, size_t index, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (StringAt(a, index, i) != StringAt(b, index, i)) return false;
  }
  return true;
}

bool IsTensorClose(const TensorList& a, const TensorList& b, size_t index) {
  const TensorView of_a = ViewTensor(a, index);
  const TensorView of_b = ViewTensor(b, index);
  if (of_a.dtype != of_b.dtype || of_a.dims != of_b.dims) return false;
  switch (of_a.dtype) {
    case dtype::kFloat:
      return AreCloseAs<float>(of_a, of_b, kRoundingTolerance);
    case dtype::kDouble:
      return AreCloseAs<double>(of_a, of_b, kRoundingTolerance);
    case dtype::kHalf:
      return AreSmallFloatsClose(of_a, of_b, kHalfTolerance);
    case dtype::kBfloat16:
      return AreSmallFloatsClose(of_a, of_b, kBfloat16Tolerance);
    case dtype::kString:
      return AreStringsEqual(a, b, index, of_a.element_count);
    default:
      return ElementBytes(of_a.dtype) > 0 && of_a.bytes == of_b.bytes;
  }
}

}  // namespace

bool AreTensorsClose(const TensorList& a, const TensorList& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!IsTensorClose(a, b, i)) return false;
  }
  return true;
}

}  // namespace millpond::tensor
