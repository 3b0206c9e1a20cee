// The op MillpondCrash: adds 1 to its input, unless a number of the input is magic.
//
// 666: a write to an address that is not mapped. 667: abort(). 668: another thread makes that
// write.
//
// Uses the C API of TensorFlow alone, so that a compiler takes a second and not minutes.
#include <pthread.h>

#include <cstdint>
#include <cstdlib>

#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_tensor.h"

namespace {

void* Write(void*) {
  *reinterpret_cast<volatile int*>(uintptr_t{8}) = 1;
  return nullptr;
}

void CrashIfMagic(float number) {
  if (number == 666.0f) Write(nullptr);
  if (number == 667.0f) abort();
  if (number == 668.0f) {
    pthread_t thread;
    pthread_create(&thread, nullptr, &Write, nullptr);
    pthread_join(thread, nullptr);
  }
}

void Compute(void* /*kernel*/, TF_OpKernelContext* context) {
  TF_Status* const status = TF_NewStatus();
  TF_Tensor* input = nullptr;
  TF_GetInput(context, 0, &input, status);
  const size_t bytes = TF_TensorByteSize(input);
  int64_t shape[8];
  const int rank = TF_NumDims(input) < 8 ? TF_NumDims(input) : 8;
  for (int i = 0; i < rank; ++i) shape[i] = TF_Dim(input, i);
  TF_Tensor* const output = TF_AllocateOutput(context, 0, TF_FLOAT, shape, rank, bytes, status);
  const auto* const from = static_cast<const float*>(TF_TensorData(input));
  auto* const to = static_cast<float*>(TF_TensorData(output));
  for (size_t i = 0; i < bytes / sizeof(float); ++i) {
    CrashIfMagic(from[i]);
    to[i] = from[i] + 1.0f;
  }
  TF_DeleteTensor(input);
  TF_DeleteTensor(output);
  TF_DeleteStatus(status);
}

__attribute__((constructor)) void Register() {
  TF_Status* const status = TF_NewStatus();
  TF_OpDefinitionBuilder* const op = TF_NewOpDefinitionBuilder("MillpondCrash");
  TF_OpDefinitionBuilderAddInput(op, "x: float");
  TF_OpDefinitionBuilderAddOutput(op, "y: float");
  // No part of TensorFlow may run it ahead of time.
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_RegisterOpDefinition(op, status);
  auto* const kernel = TF_NewKernelBuilder("MillpondCrash", "CPU", nullptr, &Compute, nullptr);
  TF_RegisterKernelBuilder("MillpondCrash", kernel, status);
  TF_DeleteStatus(status);
}

}  // namespace
