/* The op MillpondCrash: adds 1 to its input, unless a number of the input is magic.
 *
 * 666: a write to address 0. 667: abort(). 668: a second thread writes to address 0.
 *
 * Built with the C API of TensorFlow, so that a compiler takes a second and not minutes. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_tensor.h"

static void* Write(void* unused) {
  (void)unused;
  *(volatile int*)(uintptr_t)8 = 1;
  return NULL;
}

static void CrashIfMagic(float number) {
  if (number == 666.0f) Write(NULL);
  if (number == 667.0f) abort();
  if (number == 668.0f) {
    pthread_t thread;
    pthread_create(&thread, NULL, &Write, NULL);
    pthread_join(thread, NULL);
  }
}

static void Compute(void* kernel, TF_OpKernelContext* context) {
  (void)kernel;
  TF_Status* status = TF_NewStatus();
  TF_Tensor* input = NULL;
  TF_GetInput(context, 0, &input, status);
  const size_t bytes = TF_TensorByteSize(input);
  int64_t shape[8];
  const int rank = TF_NumDims(input) < 8 ? TF_NumDims(input) : 8;
  for (int i = 0; i < rank; ++i) shape[i] = TF_Dim(input, i);
  TF_Tensor* output = TF_AllocateOutput(context, 0, TF_FLOAT, shape, rank, bytes, status);
  const float* from = TF_TensorData(input);
  float* to = TF_TensorData(output);
  for (size_t i = 0; i < bytes / sizeof(float); ++i) {
    CrashIfMagic(from[i]);
    to[i] = from[i] + 1.0f;
  }
  TF_DeleteTensor(input);
  TF_DeleteTensor(output);
  TF_DeleteStatus(status);
}

__attribute__((constructor)) static void Register(void) {
  TF_Status* status = TF_NewStatus();
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder("MillpondCrash");
  TF_OpDefinitionBuilderAddInput(op, "x: float");
  TF_OpDefinitionBuilderAddOutput(op, "y: float");
  /* No part of TensorFlow may run it ahead of time. */
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_RegisterOpDefinition(op, status);
  TF_RegisterKernelBuilder("MillpondCrash",
                           TF_NewKernelBuilder("MillpondCrash", "CPU", NULL, &Compute, NULL),
                           status);
  TF_DeleteStatus(status);
}
