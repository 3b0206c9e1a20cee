#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "native/tensor/tensor_list.h"

namespace millpond::tensor {

// The largest difference of two float32 results of the same rows that comes from rounding alone,
// relative to the values. A batch adds in another order than a row. Measured: 2.4e-6 in ten
// two-tower models.
inline constexpr double kRoundingTolerance = 1e-5;

// The distance of two results.
struct Difference {
  enum class Size {
    kNone,  // no more than rounding does
    // more than rounding usually does, but another kernel for another number of rows may do it
    kSmall,
    kLarge,  // far beyond that
  };

  Size size = Size::kNone;
  // The place of the difference that is largest compared with its tolerance, unless it is kNone.
  size_t tensor = 0;
  int64_t row = 0;
  std::string a;  // the values, or the shapes if these differ
  std::string b;
  double tolerance = 0;  // of size kNone; 0 if the values are no floats
};

// The magnitudes of one tensor's values in recent rows. All are finite.
struct Magnitude {
  // A column is `column_elements` neighbouring elements of a row. Empty: nothing is known.
  std::vector<double> columns;
  int64_t column_elements = 1;
  // The mean element of a row has it.
  double row = 0;

  // Returns the magnitude of element `at` of a row.
  double Of(int64_t at) const;
};

// The magnitudes of the values of named tensors in the rows that were noted last. A score near zero
// is a sum of terms as large as those of the other scores, so its rounding is as large as theirs.
//
// The rows come from clients. So each magnitude is the upper quartile of the last kRowsKept rows: a
// few rows of huge values change nothing, and no row counts for long. Thread: any.
class Magnitudes {
 public:
  static constexpr size_t kRowsKept = 16;
  // A row with more elements has as many columns, of several elements each.
  static constexpr int64_t kColumnsMax = 4096;
  // A magnitude is at most this many times the largest value of the rows that are compared.
  static constexpr double kLargestFactor = 1e4;

  // Adds rows of `tensors`, at most kRowsKept of each. `names` has a name for each tensor.
  void Note(const std::vector<std::string>& names, const TensorList& tensors);
  // Returns the magnitudes for a comparison of the rows of `tensors`: empty ones for tensors
  // without floats.
  std::vector<Magnitude> Of(const std::vector<std::string>& names, const TensorList& tensors) const;

 private:
  struct Recent {
    int64_t row_elements = 0;
    size_t next = 0;                        // the place of the next row
    std::vector<std::vector<double>> rows;  // the magnitudes of the columns, and of the row
  };

  mutable std::mutex mutex_;
  std::map<std::string, Recent> recent_;  // guarded by mutex_
};

// Compares two lists tensor by tensor. Floats may differ by `relative_tolerance` of the larger
// value, or of its column's entry in `magnitudes` if that is more; half and bfloat16 by four of
// their units at least, unless `relative_tolerance` is 0. A difference that would be kNone by the
// magnitude of the whole row is kSmall. `magnitudes` may be empty. NaN equals NaN. If integers,
// bools or strings differ, the difference is kLarge. So it is if dtypes or shapes differ, and for
// elements that are neither plain numbers nor strings.
Difference Compare(const TensorList& a, const TensorList& b,
                   const std::vector<Magnitude>& magnitudes, double relative_tolerance);

// Returns a text like "output 'y', row 3: 2.5 in a batch of 8 rows, 1.25 alone (tolerance 2e-05)"
// for a difference that is not kNone, of the results `a` alone and `b` in `where`.
std::string Describe(const Difference& difference, const std::string& output,
                     const std::string& where);

// Returns true if both lists have equal dtypes, shapes and values.
bool AreTensorsEqual(const TensorList& a, const TensorList& b);

}  // namespace millpond::tensor
