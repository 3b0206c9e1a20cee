#pragma once

#include <cstddef>
#include <vector>

namespace millpond::pjrt {

// The places of several tensors in one block of memory. A run has a block of inputs and one of
// outputs, so it takes one transfer each way: each has its own cost, whatever its size.
struct PackedTensors {
  // The type of a block on an accelerator is an unsigned integer of so many bytes.
  static constexpr size_t kWordBytes = 4;
  // Tensors begin at a cache line.
  static constexpr size_t kLineBytes = 64;

  // Places tensors of these sizes, in their order.
  explicit PackedTensors(const std::vector<size_t>& tensor_bytes) {
    for (const size_t tensor : tensor_bytes) {
      offsets.push_back(RoundUp(bytes, kLineBytes));
      bytes = offsets.back() + tensor;
    }
    bytes = RoundUp(bytes, kWordBytes);
  }

  static size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

  std::vector<size_t> offsets;  // in bytes
  size_t bytes = 0;             // of the block
};

}  // namespace millpond::pjrt
