#pragma once

namespace millpond::tf {

// The class that TensorFlow reports for the op RestoreV2 once our kernel is registered.
inline constexpr char kRestoreKernelName[] = "MillpondRestoreV2";

// Replaces TensorFlow's kernel of the op RestoreV2 with ours, for the whole life of the process.
// Existing sessions keep their kernels. Call it once.
//
// The stock kernel reads large tensors on a private pool of eight threads, which no setting
// reaches. Ours restores only on the thread that computes it. It reads each tensor from the file
// into its output and checks its crc32c. It obeys the thread's LoadScope (load_control.h). Between
// two pieces of a tensor, which take less than a millisecond each, it checks if the load is
// cancelled and how fast it may read. Then it reports the bytes that it has read.
//
// A tensor that is a table of the load (loaded_tables.h) is read into the table's own memory, or
// not at all if its bytes are there.
//
// TensorFlow's BundleReader reads the other cases, on this thread too: partitioned tensors that are
// restored whole, strings, variants, checkpoints of the other byte order and file systems other
// than the local file system. A piece is then a whole tensor.
//
// Errors:
// - NOT_FOUND: a missing tensor, or a checkpoint of TensorFlow's format before 2016, which no
//   SavedModel has.
// - INVALID_ARGUMENT: another dtype, or a slice that does not fit.
// - DATA_LOSS: a wrong bit.
// - OUT_OF_RANGE: a tensor beyond the end of its file.
// - RESOURCE_EXHAUSTED: no memory.
// - CANCELLED: a cancelled load.
void RegisterRestoreKernel();

}  // namespace millpond::tf
