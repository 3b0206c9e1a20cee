#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millpond::pjrt {

// The identity of a tensor's bytes, by which two versions of a model may have them in common.
struct TableContents {
  std::string name;                   // of the variable, for reports
  std::string base;                   // the identity of its bytes before rows were changed
  std::vector<int64_t> changed_rows;  // ascending, each once; the base does not tell their bytes
  bool has_writer = false;            // the version's init op may change rows
};

}  // namespace millpond::pjrt
