#pragma once

#include "native/pjrt/api.h"
#include "tensorflow/core/framework/types.pb.h"

namespace millpond::tf {

// Returns the type of an accelerator's buffer of `dtype`, a tensorflow::DataType, and
// PJRT_Buffer_Type_INVALID for a dtype that programs of XLA do not take.
inline PJRT_Buffer_Type BufferType(int dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return PJRT_Buffer_Type_F32;
    case tensorflow::DT_DOUBLE:
      return PJRT_Buffer_Type_F64;
    case tensorflow::DT_HALF:
      return PJRT_Buffer_Type_F16;
    case tensorflow::DT_BFLOAT16:
      return PJRT_Buffer_Type_BF16;
    case tensorflow::DT_INT8:
      return PJRT_Buffer_Type_S8;
    case tensorflow::DT_INT16:
      return PJRT_Buffer_Type_S16;
    case tensorflow::DT_INT32:
      return PJRT_Buffer_Type_S32;
    case tensorflow::DT_INT64:
      return PJRT_Buffer_Type_S64;
    case tensorflow::DT_UINT8:
      return PJRT_Buffer_Type_U8;
    case tensorflow::DT_UINT16:
      return PJRT_Buffer_Type_U16;
    case tensorflow::DT_UINT32:
      return PJRT_Buffer_Type_U32;
    case tensorflow::DT_UINT64:
      return PJRT_Buffer_Type_U64;
    case tensorflow::DT_BOOL:
      return PJRT_Buffer_Type_PRED;
    default:
      return PJRT_Buffer_Type_INVALID;
  }
}

}  // namespace millpond::tf
