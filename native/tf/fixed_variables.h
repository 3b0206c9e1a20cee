#pragma once

#include <memory>

#include "tensorflow/core/common_runtime/executor.h"

namespace tensorflow {
class Graph;
class Session;
}  // namespace tensorflow

namespace millpond::tf {

// Variables that no request can change are looked up once, when an executor is made, and not in
// each run.
//
// Theory of operation. TensorFlow's kernels look a variable up in each run: by its name under the
// mutex of the resource manager, under the variable's own mutex, and with two counts of references.
// All runs write to these cache lines, so on many cores they wait for one another. Once nothing
// writes to the variables any more, WithFixedVariables gives an executor other kernels. A read of a
// variable becomes a constant, which an executor hands on without a count and without a kernel. A
// gather from a variable has its table from the beginning (gather_kernel.h). Sums of a variable's
// rows ask for them first (segment_kernel.h).

// Allows fixed kernels for all executors that `session` makes from now on. To be called when the
// variables have their values, and only if no signature writes to one. Does nothing in the stock
// runtime, which has executors of its own.
void FixVariables(tensorflow::Session* session);

// The parts of an executor with fixed kernels.
struct FixedExecutor {
  tensorflow::LocalExecutorParams params;
  std::unique_ptr<tensorflow::Graph> graph;  // may go once the executor is made
};

// Returns `params` and a copy of `graph` so that an executor made with them has fixed kernels: for
// each read of a variable and each gather from one whose handle the graph shows. Before
// FixVariables too, each GatherV2 and each ResourceGather by rows has a kernel that asks for rows
// ahead.
//
// In the copy a read has no input, because TensorFlow's executors expect none of a constant: its
// single-threaded one would hand the variable's handle to another node.
FixedExecutor WithFixedVariables(tensorflow::LocalExecutorParams params,
                                 const tensorflow::Graph& graph);

// Registers the fixed kernels in TensorFlow, for the whole process. Call it once.
void RegisterFixedKernels();

}  // namespace millpond::tf
