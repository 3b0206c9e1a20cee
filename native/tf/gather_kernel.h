#pragma once

namespace millpond::tf {

// Gathers that do not wait for memory: ResourceGather and GatherV2 along axis 0, without batch
// dimensions, for all dtypes of a fixed size and ids of int32 and int64.
//
// A look-up in a large table waits for memory, because each row is somewhere else. While a row is
// copied, these kernels ask for the rows that follow it. They copy rows as bytes, and check each
// id as TensorFlow's kernels do, with the same errors.
//
// A node has them by the attribute `_kernel` (kMillpondKernel). ResourceGather's takes its table
// from FixedValue, GatherV2's from its input. By kVariableKernel a ResourceGather looks its
// variable up in each run, as TensorFlow's does.

inline constexpr char kVariableKernel[] = "millpond_variable";

// Registers the kernels in TensorFlow, for the whole process. Call it once.
void RegisterGatherKernels();

}  // namespace millpond::tf
