#pragma once

#include <cstdint>
#include <vector>

#include "native/pjrt/packed_tensors.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

// Tensors in one block of memory (pjrt::PackedTensors), inside programs of XLA.
namespace millpond::tf {

// The type of a block's elements.
inline constexpr xla::PrimitiveType kWord = xla::U32;
inline constexpr int64_t kWordBytes = pjrt::PackedTensors::kWordBytes;

// A tensor of a program, as it lies in memory.
struct TensorLayout {
  explicit TensorLayout(const xla::Shape& shape);

  int64_t bytes() const { return count * element_bytes; }
  int64_t word_count() const { return (bytes() + kWordBytes - 1) / kWordBytes; }

  xla::PrimitiveType type;
  std::vector<int64_t> dims;
  int64_t count;
  int64_t element_bytes;
  // The elements are moved as unsigned integers, because XLA may compute bfloat16 as float32, which
  // changes a NaN.
  xla::PrimitiveType stored_type;
};

// Returns the places of tensors in a block.
pjrt::PackedTensors Place(const std::vector<TensorLayout>& tensors);
// Returns a zero of a program.
xla::XlaOp Zero(xla::XlaBuilder* builder, xla::PrimitiveType type);
// Adds the block of `tensors` to `builder`'s program, as argument 0, and returns the tensors in it.
std::vector<xla::XlaOp> Unpack(const std::vector<TensorLayout>& tensors, xla::XlaBuilder* builder);

}  // namespace millpond::tf
