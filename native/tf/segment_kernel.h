#pragma once

#include <string>

namespace millpond::tf {

// Sums of rows that do not wait for memory: SparseSegmentSum, SparseSegmentMean and
// SparseSegmentSqrtN straight from a table, as tf.nn.embedding_lookup_sparse computes them with
// `allow_fast_lookup`.
//
// The rows of a large table lie apart, and TensorFlow's kernels wait for each of them. These
// kernels ask for all rows first, as many as a core's cache holds, and then let TensorFlow's kernel
// compute. So answers and errors are TensorFlow's.
//
// A node has them by the attribute `_kernel` (kMillpondKernel).

// Returns true for the names of the three ops.
bool IsSegmentOp(const std::string& op);

// Registers the kernels in TensorFlow, for the whole process. Call it once.
void RegisterSegmentKernels();

}  // namespace millpond::tf
