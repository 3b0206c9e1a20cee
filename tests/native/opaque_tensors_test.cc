#include "tests/native/opaque_tensors.h"

#include "tests/native/tensor_access_contract.h"
