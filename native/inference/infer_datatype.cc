#include "native/inference/infer_datatype.h"

namespace millpond::inference {
std::string_view DatatypeName(int dtype) {
  for (const Datatype& datatype : kDatatypes) {
    if (datatype.dtype == dtype) return datatype.name;
  }
  return {};
}

int DtypeOf(std::string_view datatype) {
  for (const Datatype& known : kDatatypes) {
    if (known.name == datatype) return known.dtype;
  }
  return 0;
}

}  // namespace millpond::inference
