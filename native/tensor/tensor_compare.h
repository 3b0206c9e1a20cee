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
// relative to the values: a batch adds in another order than a row. Measured: 2.4e-6 in ten
// two-tower models.
inline constexpr double kRoundingTolerance = 1e-5;

// How far apart two results are.
struct Difference {
  enum class Size {
    kNone,   // what rounding does
    kSmall,  // more than rounding mostly does: another kernel for another number of rows may do it
    kLarge,  // far beyond that
  };

  Size size = Size::kNone;
  // The place of the largest one, beside its tolerance, if it is not kNone.
  size_t tensor = 0;
  int64_t row = 0;
  std::string a;  // the values, or the shapes if these differ
  std::string b;
  double tolerance = 0;  // of size kNone; 0 if the values are no floats
};

// The mean magnitudes of the values of named tensors, of all that were noted. A score near zero is
// a sum of terms as large as those of the other scores, so its rounding is as large as theirs.
// Thread: any.
class Magnitudes {
 public:
  // Adds the values of `tensors`, and returns the mean magnitude of each so far: 0 for tensors
  // without floats. `names` has a name for each.
  std::vector<double> Note(const std::vector<std::string>& names, const TensorList& tensors);

 private:
  struct Mean {
    double sum = 0;
    double count = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Mean> means_;  // guarded by mutex_
};

// Compares two lists tensor by tensor. Floats may differ by `relative_tolerance` of the larger
// value, or of the tensor's entry in `magnitudes` if that is more; half and bfloat16 by four of
// their units at least, unless `relative_tolerance` is 0. `magnitudes` may be empty. NaN equals
// NaN. Integers, bools and strings are equal, or the difference is large; so it is if dtypes or
// shapes differ, and for elements that are neither plain numbers nor strings.
Difference Compare(const TensorList& a, const TensorList& b, const std::vector<double>& magnitudes,
                   double relative_tolerance);

// Returns a text like "output 'y', row 3: 2.5 in a batch of 8 rows, 1.25 alone (tolerance 2e-05)"
// for a difference that is not kNone, of the results `a` alone and `b` in `where`.
std::string Describe(const Difference& difference, const std::string& output,
                     const std::string& where);

// Returns true if both lists have equal dtypes, shapes and values.
bool AreTensorsEqual(const TensorList& a, const TensorList& b);

}  // namespace millpond::tensor
