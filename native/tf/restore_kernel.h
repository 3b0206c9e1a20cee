#pragma once

namespace millpond::tf {

// The class that TensorFlow names for the op RestoreV2 once ours is registered.
inline constexpr char kRestoreKernelName[] = "MillpondRestoreV2";

// Puts our kernel of the op RestoreV2 in the place of TensorFlow's, for the whole process and for
// good. Sessions made before keep the kernels that they have. Call once.
//
// The stock kernel reads large tensors on a pool of eight threads of its own, which no setting
// reaches. Ours restores on the thread that computes it and no other, each tensor from the file
// into its output, checked by its crc32c, and obeys the thread's LoadScope (load_control.h):
// between two pieces of a tensor, under a millisecond, it looks whether the load is cancelled and
// how fast it may read, and reports what it has read. Partitioned tensors that are restored whole,
// strings, variants, checkpoints of the other byte order and file systems other than the local
// one are read by TensorFlow's BundleReader, on this thread too; there a piece is a whole tensor.
//
// A tensor that is not there is NOT_FOUND, of another dtype or with a slice that does not fit
// INVALID_ARGUMENT, with a wrong bit DATA_LOSS, beyond its file's end OUT_OF_RANGE, without memory
// RESOURCE_EXHAUSTED, a cancelled load CANCELLED. Checkpoints of TensorFlow's format before 2016,
// which no SavedModel has, are NOT_FOUND.
void RegisterRestoreKernel();

}  // namespace millpond::tf
