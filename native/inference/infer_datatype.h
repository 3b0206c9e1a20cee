#pragma once

#include <string_view>

namespace millpond::inference {

// Returns the open inference protocol's name of a tensorflow::DataType, like "FP32". Returns "" if
// the protocol does not name it (quantized and complex numbers, resources, variants).
std::string_view DatatypeName(int dtype);

// Returns the tensorflow::DataType of a name, or 0 if the protocol does not have the name.
int DtypeOf(std::string_view datatype);

}  // namespace millpond::inference
