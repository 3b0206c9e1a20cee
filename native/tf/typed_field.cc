#include "native/tf/typed_field.h"

namespace millpond::tf {

TypedField FieldOf(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return {field::kFloatVal, Layout::kFixed32};
    case tensorflow::DT_DOUBLE:
      return {field::kDoubleVal, Layout::kFixed64};
    case tensorflow::DT_COMPLEX64:
      return {field::kScomplexVal, Layout::kFixed32};
    case tensorflow::DT_COMPLEX128:
      return {field::kDcomplexVal, Layout::kFixed64};
    case tensorflow::DT_INT64:
      return {field::kInt64Val, Layout::kVarint};
    case tensorflow::DT_BOOL:
      return {field::kBoolVal, Layout::kVarint};
    case tensorflow::DT_UINT32:
      return {field::kUint32Val, Layout::kVarint};
    case tensorflow::DT_UINT64:
      return {field::kUint64Val, Layout::kVarint};
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
      return {field::kHalfVal, Layout::kVarint};
    case tensorflow::DT_STRING:
      return {field::kStringVal, Layout::kBytesPerElement};
    case tensorflow::DT_INT32:
    case tensorflow::DT_INT16:
    case tensorflow::DT_INT8:
    case tensorflow::DT_UINT8:
    case tensorflow::DT_UINT16:
    case tensorflow::DT_QINT8:
    case tensorflow::DT_QUINT8:
    case tensorflow::DT_QINT16:
    case tensorflow::DT_QUINT16:
    case tensorflow::DT_QINT32:
      return {field::kIntVal, Layout::kVarint};
    case tensorflow::DT_FLOAT8_E5M2:
    case tensorflow::DT_FLOAT8_E4M3FN:
    case tensorflow::DT_FLOAT8_E4M3FNUZ:
    case tensorflow::DT_FLOAT8_E4M3B11FNUZ:
    case tensorflow::DT_FLOAT8_E5M2FNUZ:
      return {field::kFloat8Val, Layout::kPackedBytes};
    default:
      return {};
  }
}

}  // namespace millpond::tf
