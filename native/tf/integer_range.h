#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "native/tf/row_value.h"

namespace tensorflow {
class Node;
}  // namespace tensorflow

namespace millpond::tf {

// The integers that a tensor may have.
struct IntegerRange {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t largest = std::numeric_limits<int64_t>::max();

  // False for all integers.
  bool IsBounded() const {
    return least != std::numeric_limits<int64_t>::min() ||
           largest != std::numeric_limits<int64_t>::max();
  }
  bool IsWithin(int64_t first, int64_t last) const { return least >= first && largest <= last; }
};

// Returns the range of output 0 of a node of integers, from the op that makes it: the remainder of
// a division by a constant, for example. `input` returns the range of an input, and `value` the row
// analysis's value of an input. All integers if the op tells nothing.
IntegerRange RangeOf(const tensorflow::Node& node, const std::function<IntegerRange(int)>& input,
                     const std::function<const RowValue&(int)>& value);

// Returns the range of elements that the row analysis knows; all integers if it does not.
IntegerRange RangeOf(const RowValue& value);

}  // namespace millpond::tf
