#include "native/base/no_memory.h"

namespace millpond::base {

Status NoMemoryFor(const std::string& what, const ByteBudget& budget) {
  return {Code::kResourceExhausted,
          "no memory is left for " + what + ": requests and replies under way take " +
              std::to_string(budget.in_use_bytes()) + " of the " +
              std::to_string(budget.limit_bytes()) +
              " bytes of --request_memory_bytes; try again later, send or ask for less at a time, "
              "or use another server"};
}

}  // namespace millpond::base
