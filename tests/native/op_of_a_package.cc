// A library of ops as in packages: it registers them when it is mapped.
#include "tensorflow/c/ops.h"
#include "tensorflow/c/tf_status.h"

#ifdef OF_ANOTHER_TENSORFLOW
extern "C" void millpond_test_symbol_of_another_tensorflow();
#endif

namespace {

__attribute__((constructor)) void RegisterOps() {
#ifdef OF_ANOTHER_TENSORFLOW
  millpond_test_symbol_of_another_tensorflow();
#endif
  TF_OpDefinitionBuilder* const op = TF_NewOpDefinitionBuilder("MillpondTestOfAPackage");
  TF_OpDefinitionBuilderAddInput(op, "x: float");
  TF_OpDefinitionBuilderAddOutput(op, "y: float");
  TF_Status* const status = TF_NewStatus();
  TF_RegisterOpDefinition(op, status);
  TF_DeleteStatus(status);
}

}  // namespace
