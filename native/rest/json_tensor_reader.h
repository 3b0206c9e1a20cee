#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/base/share_scope.h"
#include "native/base/status.h"
#include "native/rest/json_number.h"
#include "native/rest/json_reader.h"
#include "native/tensor/signature.h"
#include "native/tensor/tensor_list.h"

namespace millpond::rest {

// The place of the next element.
struct ElementPlace {
  size_t index = 0;  // the tensor's index in tensors
  tensor::TensorList* tensors = nullptr;
  int64_t element = 0;
  char* elements = nullptr;  // the memory of the tensor's elements; null for strings
};

// Reads one input of a request from JSON into (*tensors)[index]. The input is nested lists of
// numbers, booleans, strings or {"b64": "..."}, or a single value. The lists give the shape. Each
// element is parsed into its place in the tensor's memory, which grows whenever it is full.
//
// Call either ReadWhole once, or ReadRow for each row along the first dimension, and then Finish.
// Borrows all three. Not thread-safe. Cost: no allocation per element, except for strings.
//
// Fails the reader with INVALID_ARGUMENT if a value is of another type or out of its range, or if
// the lists do not form a tensor. Fails it with RESOURCE_EXHAUSTED if the tensor grows beyond
// base::kMaxTensorBytes, and with UNIMPLEMENTED if JSON has no values for the signature's dtype.
class TensorReader {
 public:
  TensorReader(const tensor::TensorSpec& spec, size_t index, tensor::TensorList* tensors);

  bool ReadWhole(JsonReader* reader);
  bool ReadRow(JsonReader* reader);
  int64_t row_count() const { return row_count_; }

  // Completes the tensor. Returns INVALID_ARGUMENT if the signature does not take it. Empty lists
  // do not show the dimensions inside them. These come from the signature, with 0 for a dimension
  // of any size.
  base::Status Finish();

 private:
  static constexpr int64_t kUnknown = -1;

  bool ReadAt(JsonReader* reader, size_t depth);
  bool ReadList(JsonReader* reader, size_t depth);
  // Reads the element at the cursor. With `is_list` it also reads the elements after it, through
  // the list's end. `*position` is the element's place in the list, and is then set to the place
  // after the last element.
  bool ReadElements(JsonReader* reader, bool is_list, int64_t* position);
  template <typename Element>
  bool ReadElementsOf(JsonReader* reader, bool is_list, int64_t* position);

  bool OpenList(JsonReader* reader, size_t depth);
  bool CloseList(JsonReader* reader, size_t depth, int64_t size);
  bool SetRank(JsonReader* reader, size_t rank);
  bool Grow(JsonReader* reader);
  bool FailElement(JsonReader* reader, ReadResult result);
  bool FailLists(JsonReader* reader, size_t depth, const std::string& what);
  // Returns a prefix like "input 'x' at [1][2]: " for the element whose first `depth` indices are
  // known.
  std::string Where(size_t depth) const;
  std::vector<int64_t> FullDims() const;

  const tensor::TensorSpec& spec_;
  std::vector<int64_t> dims_;  // the sizes of the lists; kUnknown until the first list is closed
  std::vector<int64_t> path_;  // the index of the current element in each list
  int64_t rank_ = kUnknown;    // kUnknown until the first element or the first empty list
  int64_t row_count_ = 0;      // the number of rows that were started
  ElementPlace next_;
  base::DecodeLook look_;
  int64_t capacity_ = 0;  // the tensor's elements; 0 until it is made
};

}  // namespace millpond::rest
