#include "native/tensor/tensor_compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "native/tensor/dtype.h"
#include "native/tensor/signature.h"
#include "native/tensor/small_float.h"
#include "native/tensor/tensor_access.h"

namespace millpond::tensor {
namespace {

// Four units in the last place (IEEE 754 binary16, bfloat16).
constexpr double kHalfTolerance = 4.0 / 1024;
constexpr double kBfloat16Tolerance = 4.0 / 128;
// A difference above these shares of the values is large: sums that nearly cancel out may lose some
// more digits than kRoundingTolerance has, and no more.
constexpr double kLargeShare = 1e-3;
constexpr double kLargeShareOfHalf = 1.0 / 16;
constexpr double kLargeShareOfBfloat16 = 1.0 / 4;
constexpr size_t kTextBytesMax = 40;

// The shares of the values up to which a difference is kNone and kSmall.
struct Shares {
  double none;
  double small;
};

Shares SharesOf(int dtype, double relative_tolerance) {
  const auto at_least = [relative_tolerance](double none, double small) {
    const double share = relative_tolerance == 0 ? 0 : std::max(none, relative_tolerance);
    return Shares{share, std::max(small, share)};
  };
  if (dtype == dtype::kHalf) return at_least(kHalfTolerance, kLargeShareOfHalf);
  if (dtype == dtype::kBfloat16) return at_least(kBfloat16Tolerance, kLargeShareOfBfloat16);
  // A double may have been computed from floats.
  return at_least(0, kLargeShare);
}

template <typename T>
T RawAt(const TensorView& view, int64_t i) {
  T value;
  std::memcpy(&value, view.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

using Reader = double (*)(const TensorView& view, int64_t i);

// Returns the function that reads the elements of a floating dtype; null for any other dtype.
Reader ReaderOf(int dtype) {
  switch (dtype) {
    case dtype::kFloat:
      return [](const TensorView& view, int64_t i) -> double { return RawAt<float>(view, i); };
    case dtype::kDouble:
      return [](const TensorView& view, int64_t i) { return RawAt<double>(view, i); };
    case dtype::kHalf:
      return [](const TensorView& view, int64_t i) -> double {
        return Half::ToFloat(RawAt<uint16_t>(view, i));
      };
    case dtype::kBfloat16:
      return [](const TensorView& view, int64_t i) -> double {
        return Bfloat16::ToFloat(RawAt<uint16_t>(view, i));
      };
    default:
      return nullptr;
  }
}

std::string TextOf(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

// Returns an integer or a bool as a text.
std::string NumberText(const TensorView& view, int64_t i) {
  switch (ElementBytes(view.dtype)) {
    case 1:
      return std::to_string(RawAt<int8_t>(view, i));
    case 2:
      return std::to_string(RawAt<int16_t>(view, i));
    case 4:
      return std::to_string(RawAt<int32_t>(view, i));
    default:
      return std::to_string(RawAt<int64_t>(view, i));
  }
}

std::string StringText(std::string_view value) {
  const bool is_long = value.size() > kTextBytesMax;
  return "'" + std::string(value.substr(0, kTextBytesMax)) + (is_long ? "…'" : "'");
}

int64_t RowElements(const TensorView& view) {
  const int64_t rows = view.dims.empty() ? 1 : std::max<int64_t>(1, view.dims.front());
  return std::max<int64_t>(1, view.element_count / rows);
}

int64_t RowOf(const TensorView& view, int64_t element) { return element / RowElements(view); }

// The elements of a column, if there are to be at most Magnitudes::kColumnsMax.
int64_t ColumnElements(int64_t row_elements) {
  return (row_elements + Magnitudes::kColumnsMax - 1) / Magnitudes::kColumnsMax;
}

// Returns the mean magnitude of the finite elements among some; 0 if there are none. It is finite,
// although the sum of two finite values may be infinite.
double MeanMagnitude(const TensorView& view, Reader read, int64_t first, int64_t count) {
  double mean = 0;
  double seen = 0;
  for (int64_t at = first; at < first + count; ++at) {
    const double value = std::abs(read(view, at));
    if (!std::isfinite(value)) continue;
    seen += 1;
    mean += (value - mean) / seen;
  }
  return mean;
}

// Returns the magnitudes of the columns of row `row`, and at the end the magnitude of the whole
// row.
std::vector<double> MagnitudesOfRow(const TensorView& view, Reader read, int64_t row) {
  const int64_t row_elements = RowElements(view);
  const int64_t column_elements = ColumnElements(row_elements);
  const int64_t begin = row * row_elements;
  std::vector<double> all;
  for (int64_t at = 0; at < row_elements; at += column_elements) {
    const int64_t count = std::min(column_elements, row_elements - at);
    all.push_back(MeanMagnitude(view, read, begin + at, count));
  }
  all.push_back(MeanMagnitude(view, read, begin, row_elements));
  return all;
}

// Returns the largest value of each column, and at the end the largest of all.
std::vector<double> LargestOf(const TensorView& view, Reader read) {
  const int64_t row_elements = RowElements(view);
  const int64_t column_elements = ColumnElements(row_elements);
  const int64_t columns = (row_elements + column_elements - 1) / column_elements;
  std::vector<double> largest(static_cast<size_t>(columns) + 1, 0);
  for (int64_t i = 0; i < view.element_count; ++i) {
    const double value = std::abs(read(view, i));
    if (!std::isfinite(value)) continue;
    double& column = largest[static_cast<size_t>(i % row_elements / column_elements)];
    column = std::max(column, value);
    largest.back() = std::max(largest.back(), value);
  }
  return largest;
}

Difference Large(size_t index, int64_t row, std::string a, std::string b) {
  return {Difference::Size::kLarge, index, row, std::move(a), std::move(b), 0};
}

// Returns the size of the difference of two floats of magnitude `magnitude` in a row of magnitude
// `row`, and the difference as a share of the value that it is compared with. The share is infinite
// if a value is not finite.
std::pair<Difference::Size, double> SizeOf(double a, double b, double magnitude, double row,
                                           const Shares& shares) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return {Difference::Size::kNone, 0};
  if (!std::isfinite(a) || !std::isfinite(b)) return {Difference::Size::kLarge, HUGE_VAL};
  const double scale = std::max({std::abs(a), std::abs(b), magnitude});
  // Halved first, because the difference of two finite values may be infinite.
  const double share = std::abs(a / 2 - b / 2) / scale * 2;
  if (share <= shares.none) return {Difference::Size::kNone, share};
  // If larger values of the row cancel out, the remainder has their rounding.
  const bool is_small = share <= shares.small || std::abs(a / 2 - b / 2) <= shares.none * row / 2;
  return {is_small ? Difference::Size::kSmall : Difference::Size::kLarge, share};
}

Difference CompareFloats(const TensorView& a, const TensorView& b, size_t index,
                         const Magnitude& magnitude, double relative_tolerance) {
  const Reader read = ReaderOf(a.dtype);
  const Shares shares = SharesOf(a.dtype, relative_tolerance);
  const int64_t row_elements = RowElements(a);
  std::pair<Difference::Size, double> largest{Difference::Size::kNone, 0};
  int64_t at = 0;
  for (int64_t i = 0; i < a.element_count; ++i) {
    const auto size =
        SizeOf(read(a, i), read(b, i), magnitude.Of(i % row_elements), magnitude.row, shares);
    if (size <= largest) continue;
    largest = size;
    at = i;
  }
  if (largest.first == Difference::Size::kNone) return {};
  const double of_a = read(a, at);
  const double of_b = read(b, at);
  Difference difference = Large(index, RowOf(a, at), TextOf(of_a), TextOf(of_b));
  difference.size = largest.first;
  difference.tolerance =
      shares.none * std::max({std::abs(of_a), std::abs(of_b), magnitude.Of(at % row_elements)});
  return difference;
}

Difference CompareStrings(const TensorList& a, const TensorList& b, size_t index,
                          const TensorView& view) {
  for (int64_t i = 0; i < view.element_count; ++i) {
    const std::string_view of_a = StringAt(a, index, i);
    const std::string_view of_b = StringAt(b, index, i);
    if (of_a != of_b) return Large(index, RowOf(view, i), StringText(of_a), StringText(of_b));
  }
  return {};
}

Difference CompareNumbers(const TensorView& a, const TensorView& b, size_t index) {
  const auto bytes = static_cast<int64_t>(ElementBytes(a.dtype));
  if (bytes <= 0) return Large(index, 0, "no number", "no number");
  for (int64_t i = 0; i < a.element_count; ++i) {
    const auto at = static_cast<size_t>(i * bytes);
    const auto size = static_cast<size_t>(bytes);
    if (a.bytes.substr(at, size) == b.bytes.substr(at, size)) continue;
    return Large(index, RowOf(a, i), NumberText(a, i), NumberText(b, i));
  }
  return {};
}

Difference CompareTensor(const TensorList& a, const TensorList& b, size_t index,
                         const Magnitude& magnitude, double relative_tolerance) {
  const TensorView of_a = ViewTensor(a, index);
  const TensorView of_b = ViewTensor(b, index);
  if (of_a.dtype != of_b.dtype || of_a.dims != of_b.dims) {
    return Large(index, 0, DescribeTensor(of_a.dtype, true, of_a.dims),
                 DescribeTensor(of_b.dtype, true, of_b.dims));
  }
  if (of_a.dtype == dtype::kString) return CompareStrings(a, b, index, of_a);
  if (ReaderOf(of_a.dtype) == nullptr) return CompareNumbers(of_a, of_b, index);
  return CompareFloats(of_a, of_b, index, magnitude, relative_tolerance);
}

}  // namespace

double Magnitude::Of(int64_t at) const {
  if (columns.empty()) return 0;
  const auto column = static_cast<size_t>(at / std::max<int64_t>(1, column_elements));
  return columns[std::min(column, columns.size() - 1)];
}

void Magnitudes::Note(const std::vector<std::string>& names, const TensorList& tensors) {
  for (size_t i = 0; i < std::min(tensors.size(), names.size()); ++i) {
    const TensorView view = ViewTensor(tensors, i);
    const Reader read = ReaderOf(view.dtype);
    if (read == nullptr || view.element_count == 0) continue;
    const int64_t row_elements = RowElements(view);
    const int64_t rows = view.element_count / row_elements;
    const auto kept = static_cast<int64_t>(kRowsKept);
    const int64_t step = (rows + kept - 1) / kept;
    std::vector<std::vector<double>> noted;
    for (int64_t row = 0; row < rows; row += step) {
      noted.push_back(MagnitudesOfRow(view, read, row));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Recent& recent = recent_[names[i]];
    // If the rows have another length, their columns are others too.
    if (recent.row_elements != row_elements) recent = {row_elements, 0, {}};
    for (std::vector<double>& row : noted) {
      if (recent.rows.size() < kRowsKept) {
        recent.rows.push_back(std::move(row));
      } else {
        recent.rows[recent.next] = std::move(row);
        recent.next = (recent.next + 1) % kRowsKept;
      }
    }
  }
}

std::vector<Magnitude> Magnitudes::Of(const std::vector<std::string>& names,
                                      const TensorList& tensors) const {
  std::vector<Magnitude> all(tensors.size());
  for (size_t i = 0; i < std::min(tensors.size(), names.size()); ++i) {
    const TensorView view = ViewTensor(tensors, i);
    const Reader read = ReaderOf(view.dtype);
    if (read == nullptr || view.element_count == 0) continue;
    std::vector<double> magnitudes = LargestOf(view, read);
    std::vector<double> recent_rows;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto recent = recent_.find(names[i]);
    if (recent == recent_.end() || recent->second.row_elements != RowElements(view)) continue;
    for (size_t column = 0; column < magnitudes.size(); ++column) {
      recent_rows.clear();
      for (const auto& row : recent->second.rows) recent_rows.push_back(row[column]);
      const auto quartile =
          recent_rows.begin() + static_cast<std::ptrdiff_t>((recent_rows.size() - 1) * 3 / 4);
      std::nth_element(recent_rows.begin(), quartile, recent_rows.end());
      // Compared as a quotient, because a product may be infinite.
      if (*quartile / kLargestFactor <= magnitudes[column]) {
        magnitudes[column] = *quartile;
      } else {
        magnitudes[column] *= kLargestFactor;
      }
    }
    all[i].row = magnitudes.back();
    magnitudes.pop_back();
    all[i].columns = std::move(magnitudes);
    all[i].column_elements = ColumnElements(RowElements(view));
  }
  return all;
}

Difference Compare(const TensorList& a, const TensorList& b,
                   const std::vector<Magnitude>& magnitudes, double relative_tolerance) {
  if (a.size() != b.size()) {
    return Large(0, 0, std::to_string(a.size()) + " tensors",
                 std::to_string(b.size()) + " tensors");
  }
  Difference worst;
  for (size_t i = 0; i < a.size(); ++i) {
    const Magnitude magnitude = i < magnitudes.size() ? magnitudes[i] : Magnitude();
    Difference difference = CompareTensor(a, b, i, magnitude, relative_tolerance);
    if (difference.size > worst.size) worst = std::move(difference);
  }
  return worst;
}

std::string Describe(const Difference& difference, const std::string& output,
                     const std::string& where) {
  std::string text = "output '" + output + "', row " + std::to_string(difference.row) + ": " +
                     difference.b + " in " + where + ", " + difference.a + " alone";
  if (difference.tolerance > 0) {
    std::array<char, 32> tolerance{};
    std::snprintf(tolerance.data(), tolerance.size(), "%.2g", difference.tolerance);
    text += std::string(" (tolerance ") + tolerance.data() + ")";
  }
  return text;
}

bool AreTensorsEqual(const TensorList& a, const TensorList& b) {
  return Compare(a, b, {}, 0).size == Difference::Size::kNone;
}

}  // namespace millpond::tensor
