#include "native/base/status.h"

#include <array>
#include <cstddef>

namespace millpond::base {

const char* CodeName(Code code) {
  static constexpr std::array<const char*, kCodeCount> kNames = {"OK",
                                                                 "CANCELLED",
                                                                 "UNKNOWN",
                                                                 "INVALID_ARGUMENT",
                                                                 "DEADLINE_EXCEEDED",
                                                                 "NOT_FOUND",
                                                                 "ALREADY_EXISTS",
                                                                 "PERMISSION_DENIED",
                                                                 "RESOURCE_EXHAUSTED",
                                                                 "FAILED_PRECONDITION",
                                                                 "ABORTED",
                                                                 "OUT_OF_RANGE",
                                                                 "UNIMPLEMENTED",
                                                                 "INTERNAL",
                                                                 "UNAVAILABLE",
                                                                 "DATA_LOSS",
                                                                 "UNAUTHENTICATED"};
  return kNames.at(static_cast<size_t>(code));
}

}  // namespace millpond::base
